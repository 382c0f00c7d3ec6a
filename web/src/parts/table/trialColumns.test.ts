import { describe, expect, it } from "vitest";
import type { Trial } from "../../api/types";
import { after, nothing, story } from "../../test/run";
import { frontsOf, pointsOf } from "../../charts/pareto";
import { columnsOf, serverColumn, sortTrials } from "./trialColumns";

const TRIALS = [...after(nothing(), story(30)).trials];
TRIALS[3] = { ...TRIALS[3]!, params: { ...TRIALS[3]!.params, "optimizer/beta": 0.9, name: "adam" }, best_value: null };
const COLUMNS = columnsOf(TRIALS, "accuracy", "training_iteration");

describe("best and last values", () => {
  const label = (trials: readonly Trial[]) =>
    columnsOf(trials, "accuracy", "training_iteration").map((column) => column.label);

  it("are named as such, with the iteration of the best one, if they differ", () => {
    const peaked = [{ ...TRIALS[0]!, best_value: 0.9, last_value: 0.8, best_iteration: 7 }];
    expect(label(peaked)).toEqual(expect.arrayContaining(["Best accuracy", "Last accuracy", "Best at"]));
    const column = columnsOf(peaked, "accuracy", "training_iteration").find(({ id }) => id === "best_iteration")!;
    expect([column.value(peaked[0]!), serverColumn(column.id)]).toEqual([7, "best_iteration"]);
    expect(label([{ ...TRIALS[0]!, best_value: 0.9, last_value: 0.9 }])).not.toContain("Best at");
  });
});

describe("the columns of the trial table", () => {
  it("has one for each parameter that any trial has", () => {
    expect(
      COLUMNS.filter((column) => column.id.startsWith("param:")).map((column) => [column.label, column.numeric]),
    ).toEqual([
      ["lr", true],
      ["width", true],
      ["optimizer/beta", true],
      ["name", false],
    ]);
  });

  it("says which trials satisfy the constraints, if there are any", () => {
    expect(COLUMNS.map((column) => column.id)).not.toContain("feasible");
    const judged = [{ ...TRIALS[0]!, feasible: true }, { ...TRIALS[1]!, feasible: false }, TRIALS[2]!];
    const column = columnsOf(judged, "accuracy", "training_iteration").find(({ id }) => id === "feasible")!;
    expect(judged.map(column.value)).toEqual(["yes", "no", null]);
  });

  it("names the trial that a repeat repeats, if there are repeats", () => {
    expect(COLUMNS.map((column) => column.id)).not.toContain("repeat_of");
    const trials = [TRIALS[0]!, { ...TRIALS[1]!, repeat_of: 0 }];
    const column = columnsOf(trials, "accuracy", "training_iteration").find(({ id }) => id === "repeat_of")!;
    expect([column.label, ...trials.map(column.value)]).toEqual(["Repeats trial", undefined, 0]);
  });

  it("calls the value of a trial its best value or, with this scope, its last value", () => {
    const label = (scope: "all" | "last") =>
      columnsOf(TRIALS, "accuracy", "training_iteration", [], scope).find(({ id }) => id === "best")!.label;
    expect([label("all"), label("last")]).toEqual(["Best accuracy", "Last accuracy"]);
  });

  it("says which front of several objectives each trial is on, and sorts by it", () => {
    expect(COLUMNS.map((column) => column.id)).not.toContain("front");
    const objectives = [
      { metric: "accuracy", mode: "max" as const },
      { metric: "latency", mode: "min" as const },
    ];
    const of = (number: number, accuracy: number, latency: number | null) => ({
      ...TRIALS[0]!,
      number,
      last: { accuracy, latency },
    });
    const trials = [of(0, 0.95, null), of(1, 0.8, 2), of(2, 0.9, 2), of(3, 0.8, 1)];
    const fronts = frontsOf(pointsOf(trials, objectives), objectives);
    const columns = columnsOf(trials, "accuracy", "training_iteration", objectives, "all", false, {}, null, fronts);
    const column = columns.find(({ id }) => id === "front")!;
    expect([...trials.map(column.value), serverColumn(column.id)]).toEqual([null, 2, 1, 1, "front"]);
    const odd = [objectives[0]!, { metric: "constructor", mode: "min" as const }];
    const last = columnsOf(trials, "accuracy", "training_iteration", odd).find(({ id }) => id === "metric:constructor");
    expect(last!.value(trials[0]!)).toBeUndefined();
    const sorted = sortTrials(trials, columns, { column: "front", descending: false });
    expect(sorted.map(({ number }) => number)).toEqual([2, 3, 1, 0]);
  });

  it.each([true, false])("sorts by value, with trials without a value last (descending: %s)", (descending) => {
    const sorted = sortTrials(TRIALS, COLUMNS, { column: "best", descending });
    const values = sorted.map((trial) => trial.best_value);
    expect(values[values.length - 1]).toBeNull();
    const numbers = values.slice(0, -1).filter((value) => value !== null);
    expect(numbers).toEqual([...numbers].sort((a, b) => (descending ? b - a : a - b)));
    expect(sortTrials(TRIALS, COLUMNS, { column: "param:name", descending })[0]!.number).toBe(3);
  });

  it("sorts whole numbers above 2^53 by their last digits", () => {
    const seeds = [9007199254740993n, 9007199254740992n, -9007199254740993n, 7];
    const trials = seeds.map((seed, number) => ({ ...TRIALS[0]!, number, params: { seed } })) as unknown as Trial[];
    const columns = columnsOf(trials, "accuracy", "training_iteration");
    expect(columns.find(({ id }) => id === "param:seed")!.numeric).toBe(true);
    const sorted = sortTrials(trials, columns, { column: "param:seed", descending: false });
    expect(sorted.map(({ number }) => number)).toEqual([2, 3, 1, 0]);
  });

  it("puts the best trial first, not a better result that violates the constraints", () => {
    const judged = TRIALS.slice(0, 3).map((trial, i) => ({ ...trial, best_value: 0.9 - 0.1 * i, feasible: i > 0 }));
    const sorted = sortTrials(judged, COLUMNS, { column: "best", descending: true });
    expect(sorted.map((trial) => trial.best_value)).toEqual(
      [0.8, 0.7, 0.9].map((value) => expect.closeTo(value) as number),
    );
  });

  it("falls back to the number", () => {
    const sorted = sortTrials([...TRIALS].reverse(), COLUMNS, { column: "gone", descending: false });
    expect(sorted.map((trial) => trial.number)).toEqual(TRIALS.map((trial) => trial.number));
  });
});
