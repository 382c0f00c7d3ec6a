import { describe, expect, it } from "vitest";
import { bestIn, parseTrials, rowsOf, widestGap } from "./compare";

describe("a comparison", () => {
  it("knows which rows are the same in all trials", () => {
    const rows = rowsOf("Parameters", [
      { lr: 0.1, width: 16, layers: [1, 2] },
      { lr: 0.2, width: 16, layers: [1, 2], dropout: 0.5 },
    ]);
    expect(rows.map(({ name, same }) => [name, same])).toEqual([
      ["lr", false],
      ["width", true],
      ["layers", true],
      ["dropout", false],
    ]);
    expect(rows[3]!.values).toEqual([undefined, 0.5]);
  });

  it("finds where curves are farthest apart, among the places where at least two have a point", () => {
    const curve = (x: number[], y: (number | null)[]) => [
      { ordinal: 1, cause: "start" as const, last_iteration: x.length, x, y },
    ];
    const gap = widestGap([curve([1, 2, 3], [0, 0.1, 9]), curve([1, 2], [0.3, 0.9]), curve([2, 4], [null, 50])])!;
    expect(gap).toEqual({ x: 2, low: { index: 0, value: 0.1 }, high: { index: 1, value: 0.9 } });
    expect(widestGap([curve([1], [3]), curve([2], [4])])).toBeNull();
  });

  it("takes its trials from the address", () => {
    expect(parseTrials("trl_a,trl_b,trl_a,exp_c,,trl_d")).toEqual(["trl_a", "trl_b", "trl_d"]);
    expect(parseTrials(null)).toEqual([]);
    expect(parseTrials(Array.from({ length: 14 }, (_, i) => `trl_${i}`).join())).toHaveLength(10);
  });
});

describe("the best of the compared values", () => {
  const row = { group: "Results", name: "best loss", values: [0.3, undefined, 0.1], same: false };

  it("depends on the mode of the objective", () => {
    expect(bestIn(row, { metric: "loss", mode: "min", scope: "all" })).toBe(2);
    expect(bestIn(row, { metric: "loss", mode: "max", scope: "all" })).toBe(0);
  });

  it("is marked in the row of the objective only", () => {
    expect(bestIn({ ...row, name: "last loss" }, { metric: "loss", mode: "min", scope: "all" })).toBeNull();
    expect(bestIn({ ...row, name: "last loss" }, { metric: "loss", mode: "min", scope: "last" })).toBe(2);
  });
});
