import { describe, expect, it } from "vitest";
import { after, nothing, story } from "../test/run";
import { comparedCurvesRows, csv, curvesRows, trialsRows } from "./save";

const VIEWS = after(nothing(), story(10));

describe("numbers as CSV", () => {
  it("quotes the values that need quotes", () => {
    expect(csv([["a", 'say "no"', "x,y", null, 1.5, ["p"], true]])).toBe(
      'a,"say ""no""","x,y",,1.5,"[""p""]",true\r\n',
    );
  });

  it("names the trials that are compared", () => {
    const [one, other] = VIEWS.byStep.series;
    const rows = comparedCurvesRows(["a, trial 1", "b"], [one!, other!], "accuracy", { x: "time", x_metric: null });
    const lines = csv(rows).split("\r\n");
    expect(lines[0]).toBe("trial,segment,seconds,accuracy");
    expect(lines[1]).toMatch(/^"a, trial 1",1,/);
    expect(lines.some((line) => line.startsWith("b,"))).toBe(true);
  });

  it("has a row for each point of the curves that are drawn", () => {
    const one = VIEWS.byStep.series[1]!;
    const points = one.segments.reduce((n, segment) => n + segment.x.length, 0);
    const lines = csv(curvesRows(VIEWS.byStep, new Set([one.number])))
      .trim()
      .split("\r\n");
    expect(lines[0]).toBe("trial,segment,step,accuracy");
    expect(lines).toHaveLength(points + 1);
    expect(lines.slice(1).every((line) => line.startsWith(`${one.number},`))).toBe(true);
  });

  it("has a row for each trial", () => {
    const lines = csv(trialsRows(VIEWS.trials, null)).trim().split("\r\n");
    expect(lines).toHaveLength(VIEWS.trials.length + 1);
    expect(lines[0]).toContain("trial,state,best_value,iteration,lr,width");
  });

  it("has no number for a metric that a trial has not reported, even if every object inherits a member of its name", () => {
    const trials = [{ constructor: 1 } as Record<string, number>, {}].map((last, i) => ({
      ...VIEWS.trials[i]!,
      params: {},
      last,
    }));
    expect(trialsRows(trials, null).map((row) => row[4])).toEqual(["last constructor", 1, undefined]);
  });
});
