import { describe, expect, it } from "vitest";
import type { Trial } from "../api/types";
import { after, nothing, random, story } from "../test/run";
import { frontsIn, merged, rowsIn, withCurves, withDecisions, withRows, withSample } from "./changes";

const STEPS = story(40);

describe("putting changes into views", () => {
  const whole = after(nothing(), STEPS);

  it("gives the same views however the changes are put together", () => {
    const next = random(7);
    let pieces = nothing();
    for (let at = 0; at < STEPS.length;) {
      const size = 1 + Math.floor(next() * 9);
      pieces = after(pieces, [merged(STEPS.slice(at, at + size))]);
      at += size;
    }
    expect(pieces).toEqual(whole);
  });

  it("gives the same views when the stream begins before what was read", () => {
    for (const [from, read] of [
      [0, 50],
      [10, 11],
      [100, 180],
      [30, STEPS.length],
      [STEPS.length - 5, STEPS.length],
    ] as const) {
      const snapshot = after(nothing(), STEPS.slice(0, read));
      expect(after(snapshot, STEPS.slice(from))).toEqual(whole);
    }
  });

  it("leaves untouched what has not changed", () => {
    const early = STEPS.findIndex((step) => step.points[0]?.trial_number === 5);
    const before = after(nothing(), STEPS.slice(0, early));
    const then = after(before, [STEPS[early]!]);
    expect(
      then.byStep.series.filter((series, i) => series !== before.byStep.series[i]).map((series) => series.number),
    ).toEqual([5]);
    expect(then.trials.filter((trial, i) => trial !== before.trials[i]).map((trial) => trial.number)).toEqual([5]);
    const none = { ...STEPS[early]!, trials: [], segments: [], decisions: [], points: [], best: [] };
    const same = after(then, [none]);
    for (const view of ["trials", "segments", "byStep", "byTime", "decisions"] as const)
      expect(same[view]).toBe(then[view]);
  });

  it("shows every row as the service sent it last", () => {
    const rows = new Map(STEPS.flatMap((step) => step.trials).map((trial) => [trial.number, trial]));
    expect(whole.trials).toEqual([...rows.values()]);
    expect(whole.trials.map((trial) => trial.number)).toEqual(Array.from({ length: 40 }, (_, i) => i));
    expect(whole.decisions.filter((decision) => decision.state === "pending")).toEqual([]);
    expect(whole.decisions.map((one) => one.seq)).toEqual(whole.decisions.map((one) => one.seq).sort((a, b) => b - a));
    expect(whole.segments.some((segment) => segment.cause === "exploit")).toBe(true);
  });

  it("shows a trial as running again after a pause, an exploit and the start of its segment", () => {
    for (const cause of ["resume", "exploit"] as const) {
      const at = STEPS.findIndex((step) =>
        step.segments.some((segment) => segment.cause === cause && segment.started_at !== null),
      );
      const { trial_number: number } = STEPS[at]!.segments[0]!;
      const before = after(nothing(), STEPS.slice(0, at));
      expect(before.trials[number]!.state).toBe("pending");
      const then = after(before, [STEPS[at]!]);
      expect(then.trials[number]!.state).toBe("running");
      expect(then.byStep.series.find((series) => series.number === number)!.state).toBe("running");
    }
  });

  it("starts a new piece of the curve with every segment and keeps gaps", () => {
    const segments = whole.byStep.series.flatMap((series) =>
      series.segments.map((segment) => ({ number: series.number, ...segment })),
    );
    expect(segments.some((segment) => segment.y.includes(null))).toBe(true);
    const points = STEPS.flatMap((step) => step.points);
    for (const { number, ordinal, cause, x, y } of segments) {
      const own = points.filter((point) => point.trial_number === number && point.segment === ordinal);
      expect(x).toEqual(own.map((point) => point.iteration));
      expect(y).toEqual(own.map((point) => point.metrics["accuracy"]));
      expect(new Set(own.map((point) => point.cause))).toEqual(new Set([cause]));
    }
  });

  it("draws the same points over steps, over time and over the training code's own count", () => {
    const lengths = (series: typeof whole.byStep.series) =>
      series.map((one) => one.segments.map((segment) => segment.x.length));
    expect(lengths(whole.byTime.series)).toEqual(lengths(whole.byStep.series));
    const own = { ...nothing().byStep, x: "user_step" as const };
    const [first] = STEPS.flatMap((step) => step.points);
    const step = STEPS.find((one) => one.trials.some((trial) => trial.number === first!.trial_number))!;
    const counted = {
      trials: step.trials,
      best: [],
      points: [
        { ...first!, step: 640 },
        { ...first!, iteration: 2, step: null },
      ],
    };
    expect(withCurves(own, counted).series[0]!.segments).toEqual([
      { ordinal: 1, cause: "start", last_iteration: 1, x: [640], y: [first!.metrics["accuracy"]] },
    ]);
  });

  it("draws the same points over the trial's own time, and over a metric that falls or stays the same", () => {
    const point = STEPS.flatMap((step) => step.points)[0]!;
    const trials = STEPS.flatMap((step) => step.trials).filter((trial) => trial.number === point.trial_number);
    const points = [4, 4, 3, null].map((epoch, i) => ({
      ...point,
      iteration: i + 1,
      trial_seconds: 2.5 * i,
      metrics: { accuracy: 0.1 * i, epoch },
    }));
    for (const [across, places] of [
      [{ x: "metric", x_metric: "epoch" }, [4, 4, 3]],
      [{ x: "trial_time", x_metric: null }, [0, 2.5, 5, 7.5]],
    ] as const) {
      const change = { trials, points, best: [] };
      const drawn = withCurves({ ...nothing().byStep, ...across }, change);
      expect(drawn.series[0]!.segments.map((segment) => segment.x)).toEqual([places]);
      expect(withCurves(drawn, change), "what is there already is not added again").toEqual(drawn);
    }
  });

  it("keeps the best so far as the service sends it, for the objective that is drawn", () => {
    const { x, y } = whole.byStep.best_so_far;
    expect(y).toEqual([...y].sort((a, b) => a - b));
    expect(x).toEqual([...x].sort((a, b) => a - b));
    expect(y[y.length - 1]).toBe(
      Math.max(...STEPS.flatMap((step) => step.points).map((point) => point.metrics["accuracy"] ?? -1)),
    );
    const loss = { ...nothing().byStep, metric: "loss" };
    expect(STEPS.reduce(withCurves, loss).best_so_far.x).toEqual([]);
  });

  it("keeps each best value, even if the clock of its node is behind that of the one before", () => {
    const one = (seconds: number, value: number) => ({ seq: 1, metric: "accuracy", seconds, value });
    const change = { trials: [], points: [], best: [one(10.5, 0.7), one(10.4, 0.8), one(12, 0.9)] };
    const drawn = withCurves(nothing().byStep, change);
    expect(drawn.best_so_far).toEqual({ x: [10.5, 10.5, 12], y: [0.7, 0.8, 0.9] });
    expect(withCurves(drawn, change), "what is there already is not added again").toBe(drawn);
    // With the scope "last", the best value may get worse, and be reached again.
    const again = withCurves(drawn, { ...change, best: [one(13, 0.8), one(14, 0.9)] });
    expect(again.best_so_far).toEqual({ x: [10.5, 10.5, 12, 13, 14], y: [0.7, 0.8, 0.9, 0.8, 0.9] });
  });

  it("leaves out the curve of a trial that is not in the sample of very many trials", () => {
    const some = { ...nothing().byStep, left_out: 3 };
    expect(STEPS.reduce(withCurves, some).series).toEqual([]);
  });

  it("does not mix old decisions of pages that were not read into the list", () => {
    const [newest, older, oldest] = whole.decisions;
    const shown = [newest!, older!];
    const again = {
      decisions: [
        { ...oldest!, reason: "changed" },
        { ...older!, reason: "changed" },
      ],
    };
    expect(withDecisions(shown, again, false).map((one) => one.reason)).toEqual([newest!.reason, "changed"]);
    expect(withDecisions(shown, again, true)).toHaveLength(3);
  });
});

describe("a sample of very many trials", () => {
  const all = after(nothing(), STEPS).trials;
  const some = all.filter((trial) => trial.number % 4 === 0);
  const sample = { items: some, complete: false, places: new Map(), fronts: null, total: 40, trained: null };
  const change = (numbers: number[]) => ({
    trials: all.filter((trial) => numbers.includes(trial.number)).map((trial) => ({ ...trial, iteration: 99 })),
  });

  it("is kept up to date, and stays the same trials", () => {
    const then = withSample(sample, change([3, 4, 5]));
    expect(then.items.map((trial) => trial.number)).toEqual(some.map((trial) => trial.number));
    expect(then.items.filter((trial) => trial.iteration === 99).map((trial) => trial.number)).toEqual([4]);
    expect(withSample(sample, change([3, 5]))).toBe(sample);
  });

  it("gets new trials while it contains all trials, until there are too many to keep", () => {
    const complete = { ...sample, complete: true };
    const then = withSample(complete, change([3]));
    expect(then.items).toHaveLength(some.length + 1);
    expect(then.complete).toBe(true);
    const many = Array.from({ length: 2001 }, (_, number) => ({ ...all[0]!, number }));
    expect(withSample(complete, { trials: many }).complete).toBe(false);
  });

  it("has a row once that has moved to the next page of the table meanwhile", () => {
    const pages = [
      [3, 1],
      [1, 2],
    ].map((numbers) => ({ items: numbers.map((number) => ({ number }) as Trial) }));
    expect(rowsIn(pages).map(({ number }) => number)).toEqual([3, 1, 2]);
  });

  it("leaves the rows of a table where they are", () => {
    const pages = [
      { items: [all[7]!, all[2]!], total: 40, next_page_token: "x", fronts: [] },
      { items: [all[9]!], total: 40, next_page_token: null, fronts: [] },
    ];
    const then = withRows(pages, change([2, 3]));
    expect(then[0]!.items.map((trial) => [trial.number, trial.iteration])).toEqual([
      [7, all[7]!.iteration],
      [2, 99],
    ]);
    expect(then[1]).toBe(pages[1]);
  });

  it("has the fronts that the service reported", () => {
    const sampled = { items: [all[1]!, all[2]!], fronts: [1, 4] };
    const pages = [
      { items: [all[7]!, all[2]!], fronts: [1, 2] },
      { items: [all[9]!, all[1]!], fronts: [3, null] },
    ];
    expect([...frontsIn([sampled, ...pages])]).toEqual([
      [2, 2],
      [7, 1],
      [9, 3],
    ]);
  });
});
