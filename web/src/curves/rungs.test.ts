import { describe, expect, it } from "vitest";
import { rungLevels } from "./rungs";

const of = (scheduler: Record<string, unknown>, max_t: number | null = null) =>
  rungLevels({
    scheduler: { type: "auto" },
    resolved: { scheduler, search: null, constraints: {}, budget: null },
    max_t,
  });

describe("rungs", () => {
  it("lie at the grace period times powers of the reduction factor, below the longest trial", () => {
    expect(of({ type: "asha", max_t: 27, grace_period: 1, reduction_factor: 3 })).toEqual([1, 3, 9]);
    expect(of({ type: "asha_promotion", max_t: null, grace_period: 2, reduction_factor: 4 }, 200)).toEqual([
      2, 8, 32, 128,
    ]);
    expect(of({ type: "hyperband", max_t: 81, reduction_factor: 3 })).toEqual([1, 3, 9, 27]);
  });

  it("are all there even if the reduction factor is small", () => {
    const many = of({ type: "asha", max_t: 1000, grace_period: 1, reduction_factor: 1.1 });
    expect([many.length, many.at(-1)]).toEqual([73, 955.593817727]);
  });

  it("may be fractions, as of hours or epochs", () => {
    expect(of({ type: "asha", max_t: 4, grace_period: 0.1, reduction_factor: 3 })).toEqual([0.1, 0.3, 0.9, 2.7]);
    expect(of({ type: "hyperband", max_t: 2.5, reduction_factor: 3 })).toEqual([]);
  });

  it("do not exist for schedulers without rungs, and if trials have no maximum length", () => {
    expect(of({ type: "pbt", max_t: 27 })).toEqual([]);
    expect(of({ type: "asha", grace_period: 1, reduction_factor: 3 })).toEqual([]);
  });

  it("come from the requested options if an older version has not resolved them", () => {
    expect(
      rungLevels({
        scheduler: { type: "asha", max_t: 9, grace_period: 1, reduction_factor: 3 },
        resolved: null,
        max_t: null,
      }),
    ).toEqual([1, 3]);
  });
});
