import { describe, expect, it } from "vitest";
import type { Series } from "../api/types";
import { smoothed } from "./smooth";

const series = (...segments: ["start" | "resume" | "exploit", (number | null)[]][]): Series => ({
  trial_id: "trl_1",
  number: 1,
  state: "running",
  best_value: null,
  segments: segments.map(([cause, y], i) => ({
    ordinal: i + 1,
    cause,
    last_iteration: y.length,
    x: y.map((_, k) => k + 1),
    y,
  })),
});

describe("smoothing", () => {
  it("leaves a constant as it is, from the first point on", () => {
    const found = smoothed(series(["start", [2, 2, 2, 2]]), 0.9);
    for (const value of found.segments[0]!.y) expect(value).toBeCloseTo(2, 12);
  });

  it("is the weighted mean of what came before", () => {
    const [y] = smoothed(series(["start", [1, 0, 0]]), 0.5).segments.map((one) => one.y);
    expect(y![0]).toBeCloseTo(1);
    expect(y![1]).toBeCloseTo(0.25 / 0.75);
    expect(y![2]).toBeCloseTo(0.125 / 0.875);
  });

  it("continues across gaps and pauses, and starts over at an exploit", () => {
    const found = smoothed(series(["start", [1, null]], ["resume", [1]], ["exploit", [5, 5]]), 0.8);
    expect(found.segments.map((one) => one.y.map((value) => value && Math.round(value * 1e6) / 1e6))).toEqual([
      [1, null],
      [1],
      [5, 5],
    ]);
  });

  it("returns the same object for the same curve", () => {
    const one = series(["start", [1, 2, 3]]);
    expect(smoothed(one, 0)).toBe(one);
    expect(smoothed(one, 0.6)).toBe(smoothed(one, 0.6));
    expect(smoothed(one, 0.7)).not.toBe(smoothed(one, 0.6));
  });
});
