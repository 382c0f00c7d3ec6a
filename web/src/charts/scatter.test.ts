import { describe, expect, it } from "vitest";
import type { Trial } from "../api/types";
import { after, nothing, story } from "../test/run";
import { dimensionsOf } from "./dimensions";
import { bestByNumber, countAxis, dotsOf, fittingLabels, heatOf, isSingle, marksOf } from "./scatter";

const { trials } = after(nothing(), story(10));
const made = (number: number, params: Trial["params"], best_value: number | null, fields: Partial<Trial> = {}) => ({
  ...trials[0]!,
  number,
  params,
  best_value,
  ...fields,
});

describe("points of trials", () => {
  const some = [
    made(0, { lr: 0.001 }, 1, { state: "completed" }),
    made(1, { lr: 0.1, beta: 2 }, 3, { state: "stopped" }),
    made(2, { lr: 0.01 }, null),
  ];
  const dimensions = dimensionsOf(some, {
    metric: "loss",
    space: { lr: { type: "loguniform", lower: 1e-3, upper: 0.1 } },
  });
  const [lr, beta, loss] = ["lr", "beta", "loss"].map((label) => dimensions.find((one) => one.label === label));

  it("lie on log axes, and leave out trials without a value of the objective", () => {
    expect(dotsOf(some, lr!, loss!)).toEqual([
      { number: 0, x: 0, y: 0, finished: true, feasible: true },
      { number: 1, x: 1, y: 1, finished: false, feasible: true },
    ]);
  });

  it("have a place for the trials that lack the parameter", () => {
    const both = dimensionsOf([...some, made(3, { lr: 0.01, beta: 3 }, 2)], { metric: "loss", space: {} });
    const optional = both.find((one) => one.id === "beta")!;
    expect(dotsOf(some, optional, loss!).map((dot) => dot.x)).toEqual([null, 0]);
    expect(dotsOf(some, lr!, optional).map((dot) => dot.y)).toEqual([null, 0, null]);
    expect(beta?.optional ?? true).toBe(true);
  });

  it("have labels within the axis", () => {
    for (const { at } of marksOf(countAxis("trial", 0, 37), 300, true)) {
      expect(at).toBeGreaterThanOrEqual(0);
      expect(at).toBeLessThanOrEqual(1);
    }
    expect(marksOf(countAxis("trial", 0, 0), 300, true).length).toBeGreaterThan(0);
  });
});

describe("the labels of an axis of whole numbers", () => {
  const labels = (type: string, lower: number, upper: number) => {
    const some = [lower, upper].map((depth, number) => made(number, { depth }, number));
    const dimensions = dimensionsOf(some, { metric: "loss", space: { depth: { type, lower, upper } } });
    return marksOf(
      dimensions.find((one) => one.id === "depth")!,
      300,
      true,
    ).map(({ label }) => label);
  };

  it("are whole, on linear and on log axes", () => {
    expect(labels("randint", 1, 3)).toEqual(["1", "2", "3"]);
    expect(labels("lograndint", 1, 3)).toEqual(["1", "2"]);
    expect(labels("lograndint", 1, 100)).toEqual(expect.arrayContaining(["1", "10", "100"]));
    expect(labels("qrandint", 0, 1)).toEqual(["0", "1"]);
    expect(labels("uniform", 1, 3)).toContain("1.5");
  });
});

describe("the best so far by number", () => {
  it("has a step for each improvement, whatever the order of the trials", () => {
    const some = [made(2, {}, 0.4), made(0, {}, 0.7), made(1, {}, 0.9), made(3, {}, null)];
    expect(bestByNumber(some, "min")).toEqual([
      [0, 0.7],
      [2, 0.4],
    ]);
    expect(bestByNumber(some, "max")).toEqual([
      [0, 0.7],
      [1, 0.9],
    ]);
  });

  it("leaves out what violates the constraints", () => {
    const some = [made(0, {}, 0.7), made(1, {}, 0.9, { feasible: false }), made(2, {}, 0.8, { feasible: true })];
    expect(bestByNumber(some, "max")).toEqual([
      [0, 0.7],
      [2, 0.8],
    ]);
  });
});

describe("the means between trials", () => {
  const numbers = { columns: 25, rows: 1, categoriesAcross: null, categoriesUp: null };

  it("equal a trial's rank near it, the mean of two trials between them, and are empty far away", () => {
    const dots = [0.02, 0.22, null].map((x, number) => ({ number, x, y: 0.5, finished: true, feasible: true }));
    const { shares } = heatOf(dots, (number) => number, numbers);
    expect(shares[0]!).toBeLessThan(0.15);
    expect(shares[5]!).toBeGreaterThan(0.85);
    expect(shares[20]).toBeNull();
    const two = [0.4, 0.6].map((x, number) => ({ number, x, y: 0.5, finished: true, feasible: true }));
    expect(heatOf(two, (number) => number, { ...numbers, columns: 1 }).shares[0]).toBeCloseTo(0.5, 9);
  });

  it("are certain near finished trials, but not near trials that were stopped early", () => {
    const dots = [0.1, 0.9].map((x, number) => ({ number, x, y: 0.5, finished: number === 0, feasible: true }));
    const { sure } = heatOf(dots, () => 1, numbers);
    expect(sure[2]!).toBeGreaterThan(0.99);
    expect(sure[22]!).toBeLessThan(0.01);
    expect(sure[12]!).toBeCloseTo(0.5, 9);
  });

  it("do not mix the trials of two categories", () => {
    const dots = [0.25, 0.75].map((x, number) => ({ number, x, y: 0.5, finished: true, feasible: true }));
    const { shares } = heatOf(dots, (number) => number, { ...numbers, columns: 20, categoriesAcross: 2 });
    expect(shares.slice(5, 10)).toEqual([0, 0, 0, 0, 0]);
    expect(shares.slice(10, 15)).toEqual([1, 1, 1, 1, 1]);
  });
});

describe("isSingle", () => {
  it("tells trials that report only once from trials that were stopped early", () => {
    const once = [
      made(0, {}, 1, { state: "completed", iteration: 1 }),
      made(1, {}, 1, { state: "running", iteration: 0 }),
    ];
    expect(isSingle(once)).toBe(true);
    expect(isSingle([...once, made(2, {}, 1, { state: "running", iteration: 2 })])).toBe(false);
    expect(isSingle([made(0, {}, 1, { state: "stopped", iteration: 1 })])).toBe(false);
    expect(isSingle([])).toBe(false);
  });
});

describe("the labels of categories", () => {
  const names = Array.from({ length: 14 }, (_, i) => `category_${i}`);

  it("are shown in full where there is room", () => {
    expect(fittingLabels(["adam", "sgd", "a long name of a category"], 180)).toEqual([
      "adam",
      "sgd",
      "a long name of a category",
    ]);
    expect(fittingLabels([], 180)).toEqual([]);
  });

  it("are cut, and some are left out, so that none lies over another", () => {
    expect(fittingLabels(names.slice(0, 3), 60)).toEqual(["cate…y_0", "cate…y_1", "cate…y_2"]);
    const shown = fittingLabels(names, 16);
    expect(shown.slice(0, 4)).toEqual(["ca…_0", null, null, "ca…_3"]);
    for (const step of [1, 5, 16, 40, 100]) {
      const places = fittingLabels(names, step).flatMap((text, i) =>
        text === null ? [] : [[text, i * step] as const],
      );
      places.slice(1).forEach(([text, at], i) => expect(at - places[i]![1]).toBeGreaterThan(6.6 * text.length));
    }
  });
});
