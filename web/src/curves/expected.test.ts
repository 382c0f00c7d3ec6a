import { describe, expect, it } from "vitest";
import { after, nothing, story } from "../test/run";
import { columnsOf, EXPECTED, serverColumn, sortTrials } from "../parts/table/trialColumns";
import { ranks } from "./colours";
import { expectedOf } from "./expected";

// Trial 0 was lucky: the mean of its runs is worse than that of trial 1. Trial 2 was run once, trial 3 does not always work.
const RUNS = {
  trials: [1, 5],
  values: [0.12, 0.14],
  mean: 0.13,
  error: 0.02,
  noise: 0.05,
  pairs: 2,
  repeated: [
    { trials: [1, 5], mean: 0.13, expected: 0.15 },
    { trials: [0, 4], mean: 0.3, expected: 0.28 },
  ],
  single: { middle: 0.4, weight: 0.75 },
  dropped: [3],
};
const trial = after(nothing(), story(30)).trials[0]!;
const TRIALS = [0.1, 0.12, 0.11, 0.05, 0.5, 0.14, null].map((best_value, number) => ({
  ...trial,
  number,
  best_value,
  feasible: null,
  repeat_of: { 4: 0, 5: 1, 6: 2 }[number] ?? null,
}));

describe("the expected values after repeats", () => {
  const expected = expectedOf({ runs: RUNS })!;

  it("is the service's mean if a configuration has several runs, and its model's estimate for a single run", () => {
    expect(TRIALS.slice(0, 3).map(expected.value)).toEqual([0.28, 0.15, expect.closeTo(0.1825, 9)]);
    expect(TRIALS.slice(4).map(expected.value)).toEqual([0.28, 0.15, null]);
    expect(expected.runs(TRIALS[5]!)?.trials).toEqual([1, 5]);
    expect(expected.runs(TRIALS[2]!)).toBeNull();
  });

  it("ranks the trials, not their single runs", () => {
    expect([...ranks(TRIALS, "min", expected)]).toEqual([
      [1, 1],
      [5, 1],
      [2, 3],
      [0, 4],
      [4, 4],
      [3, 6],
    ]);
    expect(ranks(TRIALS, "min").get(3)).toBe(1);
  });

  it("sorts the table, in a column of its own", () => {
    const columns = columnsOf(TRIALS, "loss", "training_iteration", [], "all", false, {}, expected);
    expect(columns.find(({ id }) => id === EXPECTED)!.label).toBe("Expected loss");
    const sorted = sortTrials(TRIALS, columns, { column: EXPECTED, descending: false });
    expect(sorted.map(({ number }) => number)).toEqual([1, 5, 2, 0, 4, 3, 6]);
    expect(serverColumn(EXPECTED)).toBe("expected_value"); // tests/store/test_columns.py has the same trials and order
    expect(columnsOf(TRIALS, "loss", "training_iteration").map(({ id }) => id)).not.toContain(EXPECTED);
  });

  it("is missing without repeats, and if an older version of the service does not send it", () => {
    expect(expectedOf(null)).toBeNull();
    expect(expectedOf({ runs: null })).toBeNull();
    expect(expectedOf({ runs: { ...RUNS, single: null, repeated: [] } })).toBeNull();
  });
});
