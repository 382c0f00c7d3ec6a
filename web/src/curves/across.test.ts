import { describe, expect, it } from "vitest";
import {
  acrossFor,
  acrossOf,
  choices,
  chosenAcross,
  formatAcross,
  labelOf,
  missingWords,
  parseAcross,
  placeWords,
} from "./across";

const METRICS = ["loss", "val/epoch", "accuracy"];

describe("the horizontal axis", () => {
  it("is named in the address", () => {
    for (const text of ["step", "user_step", "trial_time", "time", "metric:val/epoch"])
      expect(formatAcross(parseAcross(text, METRICS)!)).toBe(text);
    for (const text of [null, "", "steps", "metric", "metric:", "metric:unknown", "accuracy"])
      expect(parseAcross(text, METRICS)).toBeNull();
  });

  it("shows the unit in which the scheduler measures training, unless another one is chosen", () => {
    const chosen = (text: string | null, time_attr: string) =>
      formatAcross(chosenAcross(text, { metrics: METRICS, time_attr }));
    expect(chosen(null, "training_iteration")).toBe("step");
    expect(chosen(null, "time_total_s")).toBe("trial_time");
    expect(chosen(null, "val/epoch")).toBe("metric:val/epoch");
    expect(chosen("time", "val/epoch")).toBe("time");
    expect(chosen("nonsense", "val/epoch")).toBe("metric:val/epoch");
    expect(chosen(null, "not reported yet")).toBe("step");
    expect(acrossOf("epoch")).toBe("metric:epoch");
  });

  it("can be any metric except the one that is drawn, and can be written into the address", () => {
    const values = choices(METRICS, "accuracy").flatMap(({ items }) => items.map(({ value }) => value));
    expect(values).toEqual(["step", "user_step", "trial_time", "time", "metric:loss", "metric:val/epoch"]);
    expect(values.map((value) => formatAcross(parseAcross(value, METRICS)!))).toEqual(values);
    expect(choices(["accuracy"], "accuracy").map(({ group }) => group)).toEqual(["Progress", "Time"]);
  });

  it("is never the metric that is drawn", () => {
    const shown = (text: string, drawn: string) => formatAcross(acrossFor(parseAcross(text, METRICS)!, drawn));
    expect([shown("metric:loss", "loss"), shown("metric:loss", "accuracy"), shown("time", "loss")]).toEqual([
      "step",
      "metric:loss",
      "time",
    ]);
  });

  it("says why nothing is drawn", () => {
    const said = (text: string) => missingWords(parseAcross(text, METRICS)!, "accuracy");
    expect(said("user_step")).toBe("No report of accuracy has a step. Pass it with tuner.report(metrics, step=...).");
    expect(said("metric:loss")).toBe("No report has both accuracy and loss.");
    expect([said("step"), said("time"), said("trial_time")]).toEqual([null, null, null]);
  });

  it("says where a point is", () => {
    const said = (text: string, value: number) => placeWords(parseAcross(text, METRICS)!, value);
    expect(said("step", 9)).toBe("iteration 9");
    expect(said("user_step", 640)).toBe("step 640");
    expect(said("time", 90)).toBe("at 1 min 30 s");
    expect(said("trial_time", 90)).toBe("after 1 min 30 s of training");
    expect(said("metric:val/epoch", 2.5)).toBe("val/epoch 2.5");
    expect(labelOf(parseAcross("metric:val/epoch", METRICS)!)).toBe("val/epoch");
  });
});
