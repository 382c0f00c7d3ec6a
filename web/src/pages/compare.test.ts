import { describe, expect, it } from "vitest";
import type { TrialState } from "../api/types";
import { bestIn, parseTrials, rowsOf, spreadOf, unfinishedTrials, verdictWords, widestGap } from "./compare";

describe("a comparison", () => {
  it("knows which rows are the same in all trials", () => {
    const rows = rowsOf("Parameters", [
      { lr: 0.1, width: 16, layers: [1, 2], schedule: null },
      { lr: 0.2, width: 16, layers: [1, 2], dropout: 0.5 },
    ]);
    expect(rows.map(({ name, same }) => [name, same])).toEqual([
      ["lr", false],
      ["width", true],
      ["layers", true],
      ["schedule", false],
      ["dropout", false],
    ]);
    expect(rows[4]!.values).toEqual([undefined, 0.5]);
    expect(rowsOf("Parameters", [{}, { constructor: 1 }])[0]).toMatchObject({ values: [undefined, 1], same: false });
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

  const loss = { metric: "loss", mode: "min", scope: "all" } as const;

  it("depends on the mode of the objective", () => {
    expect(bestIn(row, [loss], [])).toEqual([2]);
    expect(bestIn(row, [{ ...loss, mode: "max" }], [])).toEqual([0]);
    expect(bestIn({ ...row, values: [0.1, 0.3, 0.1] }, [loss], [])).toEqual([0, 2]);
  });

  it("is marked in every row of an objective, and in no other", () => {
    const last = { ...row, name: "last loss" };
    expect([bestIn(last, [loss], []), bestIn(last, [{ ...loss, scope: "last" }], [])]).toEqual([[2], [2]]);
    expect(bestIn({ ...row, name: "last latency" }, [loss], [])).toEqual([]);
    const objectives = [
      { metric: "loss", mode: "min" as const },
      { metric: "latency", mode: "max" as const },
    ];
    expect(bestIn({ ...row, name: "last latency" }, [{ ...loss, objectives }], [])).toEqual([0]);
    expect(bestIn({ ...row, group: "Parameters" }, [loss], [])).toEqual([]);
  });

  it("is not marked if experiments disagree which value is better, or if only one has a value", () => {
    expect(bestIn(row, [loss, { ...loss, mode: "max" }], [])).toEqual([]);
    expect(bestIn({ ...row, values: [0.3, undefined] }, [loss], [])).toEqual([]);
  });

  it("is not that of a trial outside the constraints", () => {
    const judged = [{ feasible: true }, { feasible: null }, { feasible: false }];
    const full = { ...row, values: [0.3, 0.2, 0.1] };
    expect(bestIn(full, [loss], judged)).toEqual([1]);
    expect(bestIn({ ...full, name: "last loss" }, [loss], judged)).toEqual([1]);
    expect(bestIn(full, [loss], [{ feasible: false }, ...judged.slice(1)])).toEqual([]);
  });
});

describe("the verdict of a comparison", () => {
  const named = (values: readonly (number | null)[]) => values.map((value, i) => ({ name: `trial ${i}`, value }));

  it("says who is the best, and how much better than the next one", () => {
    expect(verdictWords("best accuracy", "max", named([0.95, 0.9625, null]))).toEqual({
      first: "Trial 1",
      rest: "has the best accuracy of 0.9625. It is 0.0125 higher than that of trial 0, the next one (0.95).",
    });
    expect(verdictWords("best loss", "min", named([0.3, 0.1]))!.rest).toMatch(
      /^has the best loss of 0\.1\. It is 0\.2 lower/,
    );
    expect(verdictWords("best loss", "min", named([0.1, 0.1, 0.3]))).toEqual({
      first: "Trial 0 and trial 1",
      rest: "have the same best loss, 0.1.",
    });
    expect(verdictWords("best loss", "min", named([0.1, null]))).toBeNull();
  });

  it("says which trials did not train to their end", () => {
    const of = (name: string, state: TrialState, iteration: number) => ({ name, state, iteration });
    expect(
      unfinishedTrials([
        of("trial 0", "completed", 27),
        of("trial 4", "failed", 3),
        of("trial 10", "stopped", 9),
        of("trial 18", "stopped", 1),
      ]),
    ).toBe(
      "Trial 4 failed, at iteration 3; trial 10 and trial 18 were stopped early, at iterations 9 and 1. Their values are from less training than those of the trials that trained to their end.",
    );
    expect(unfinishedTrials([of("trial 1", "running", 2)])).toBe(
      "Trial 1 is still training, at iteration 2. Its value is from less training than a whole run.",
    );
    expect(unfinishedTrials([of("trial 0", "completed", 27)])).toBeNull();
  });

  it("measures how much a parameter differs within its range", () => {
    const lr = {
      id: "lr",
      label: "lr",
      objective: false,
      optional: false,
      categories: [],
      range: { min: 1e-4, max: 1, log: true },
    };
    expect(spreadOf([1e-3, 1e-1, undefined], lr)).toBeCloseTo(0.5);
    expect([spreadOf([0.1], lr), spreadOf(["a", "b"], undefined)]).toEqual([null, null]);
  });
});
