import { describe, expect, it } from "vitest";
import type { Experiment } from "../../api/types";
import { axesOf } from "./CurvesPanel";

const axes = (scheduler: Record<string, unknown>, address: Record<string, string> = {}) =>
  axesOf(
    {
      metric: "loss",
      metrics: ["loss"],
      time_attr: "training_iteration",
      state: "running",
      max_t: 12,
      scheduler,
      resolved: { scheduler, search: null, constraints: {}, budget: null },
    } as unknown as Experiment,
    [],
    { get: (name: string) => address[name] ?? null },
    "loss",
  );

describe("the horizontal axis of the curves", () => {
  it("is a log axis by default if several rungs lie at multiples", () => {
    const asha = { type: "asha", max_t: 12, grace_period: 1, reduction_factor: 3 };
    expect(axes(asha)).toMatchObject({ rungs: [1, 3, 9], logX: true });
    expect(axes({ ...asha, reduction_factor: 4 })).toMatchObject({ rungs: [1, 4], logX: true });
    expect(axes({ ...asha, grace_period: 6 })).toMatchObject({ rungs: [6], logX: false });
    expect(axes({ type: "fifo" })).toMatchObject({ rungs: [], logX: false });
  });

  it("is what the address asks for", () => {
    const asha = { type: "asha", max_t: 12, grace_period: 1, reduction_factor: 3 };
    expect(axes(asha, { xs: "linear" }).logX).toBe(false);
    expect(axes({ type: "fifo" }, { xs: "log" }).logX).toBe(true);
    expect(axes(asha, { x: "time" })).toMatchObject({ rungs: [], logX: false });
  });
});
