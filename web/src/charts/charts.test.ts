import { describe, expect, it } from "vitest";
import { parsed } from "../api/exact";
import type { Trial } from "../api/types";
import { readable } from "../format";
import { after, nothing, random, story } from "../test/run";
import {
  ABSENT,
  choose,
  conditionsOf,
  dimensionsOf,
  isLog,
  matches,
  objectiveId,
  objectiveOf,
  positionOf,
  recognized,
  stepped,
  valueAt,
  valueOf,
  type Dimension,
} from "./dimensions";
import { shownNames, titlePlace } from "./ParallelChart";
import { numberPlace, numbersOf } from "./ParetoChart";
import { firstOf, frontsOf, pointsOf, ranksByFront, staircase, type Point } from "./pareto";

const TRIALS = after(nothing(), story(40)).trials;
const SPACE = {
  lr: { type: "loguniform", lower: 1e-3, upper: 10 },
  width: { type: "choice", categories: [16, 32, 64] },
};
const EXPERIMENT = { metric: "accuracy", space: SPACE };

function withBranch(): Trial[] {
  return TRIALS.map((trial, i) => ({
    ...trial,
    params: { ...trial.params, ...(i % 2 ? { "model/depth": i } : {}), fixed: 3 },
  }));
}

describe("the scale of an axis", () => {
  it("is that of the space, in the branches of a choice, too", () => {
    const lr = (lower: number, upper: number) => ({ type: "loguniform", lower, upper });
    const space = {
      optimizer: {
        type: "choice",
        categories: [
          { kind: "adam", lr: lr(1e-3, 1e-1), beta: { type: "uniform", lower: 0.001, upper: 4 } },
          { kind: "sgd", nested: { type: "choice", categories: [{ lr: lr(1e-4, 1) }, 2] } },
        ],
      },
    };
    const trials = TRIALS.map((trial, i) => ({
      ...trial,
      params:
        i % 2
          ? { optimizer: 0, "optimizer/0/lr": 0.02 + i / 1000, "optimizer/0/beta": 0.001 + i / 10 }
          : { optimizer: 1, "optimizer/1/nested": 0, "optimizer/1/nested/0/lr": 0.02 + i / 1000 },
    }));
    const range = new Map(dimensionsOf(trials, { metric: "accuracy", space }).map((one) => [one.id, one.range]));
    expect(range.get("optimizer/0/lr")).toEqual({ min: 1e-3, max: 1e-1, log: true });
    expect(range.get("optimizer/1/nested/0/lr")).toEqual({ min: 1e-4, max: 1, log: true });
    expect(range.get("optimizer/0/beta")).toEqual({ min: 0.001, max: 4, log: false });
    expect([isLog(space, "optimizer/0/lr"), isLog(space, "optimizer/0/beta")]).toEqual([true, false]);
  });
});

describe("the axis of an objective", () => {
  const label = (trials: readonly Trial[], scope: "all" | "last", last?: string) =>
    objectiveOf(trials, { metric: "accuracy", scope }, last)?.label;

  it("says whether it shows best or last values, unless trials report once", () => {
    expect(label(TRIALS, "all")).toBe("best accuracy");
    expect(label(TRIALS, "last")).toBe("last accuracy");
    expect(label(TRIALS, "all", "accuracy")).toBe("last accuracy");
    const once = TRIALS.map((trial) => ({ ...trial, iteration: 1 }));
    expect(label(once, "all")).toBe("accuracy");
  });
});

describe("what is chosen on the axes", () => {
  it("becomes the service's filters, written with the values themselves", () => {
    const raw = withBranch().map((trial) => ({ ...trial, params: { ...trial.params, kind: trial.number % 2 } }));
    const shown = raw.map((trial) => ({
      ...trial,
      params: { ...trial.params, kind: ["adam", "sgd"][trial.number % 2]! },
    }));
    const space = { ...SPACE, kind: { type: "choice", categories: ["adam", "sgd"] } };
    const dimensions = dimensionsOf(shown, { metric: "accuracy", space });
    const brushes = {
      lr: { from: 0.01, to: 0.1 },
      kind: { of: ["sgd"] },
      width: { of: ["16", "32"] },
      [objectiveId("accuracy")]: { from: 0.5, to: 0.9 },
    };
    expect(conditionsOf(dimensions, brushes, shown, raw, { space, labels: {} })).toEqual([
      "params.lr>=0.01",
      "params.lr<=0.1",
      expect.stringMatching(/^params\.width\?=\[(16,32|32,16)\]$/),
      "params.kind?=[1]",
      "best_value>=0.5",
      "best_value<=0.9",
    ]);
    const absent = conditionsOf(dimensions, { "model/depth": { of: [ABSENT] } }, shown, raw, { space, labels: {} });
    expect(absent).toEqual(["params.model/depth?=[null]"]);
  });

  it("has all digits of categories above 2^53, which differ only in their last ones", () => {
    const seeds = [9007199254740992n, 9007199254740993n];
    const space = { seed: { type: "choice", categories: seeds } };
    const trials = TRIALS.map((trial, i) => ({ ...trial, params: { seed: seeds[i % 2] } })) as never;
    const dimensions = dimensionsOf(trials, { metric: "accuracy", space });
    expect(dimensions[0]!.categories).toEqual(seeds.map(String));
    const brushes = { seed: { of: ["9007199254740993"] } };
    expect(conditionsOf(dimensions, brushes, trials, trials, { space, labels: {} })).toEqual([
      "params.seed?=[9007199254740993]",
    ]);
    // A range has an axis of numbers, as before, also if its end was read with all digits.
    const range = parsed('{"seed":{"type":"randint","lower":0,"upper":1152921504606846976}}') as Record<
      string,
      unknown
    >;
    expect(dimensionsOf(trials, { metric: "accuracy", space: range })[0]!.range).toMatchObject({
      min: 0,
      max: 2 ** 60,
    });
  });

  it("tells values with the same text apart", () => {
    const values = [1, "1", true, "true", null, "adam"];
    const space = { kind: { type: "choice", categories: values } };
    const trials = TRIALS.map((trial, i) => ({ ...trial, params: { kind: values[i % 5] } })) as never as Trial[];
    const dimensions = dimensionsOf(trials, { metric: "accuracy", space });
    const [kind] = dimensions;
    const categories = ["1 (1)", '1 ("1")', "true (true)", 'true ("true")', "null", "adam"];
    expect(kind!.categories).toEqual(categories);
    expect(trials.slice(0, 5).map((trial) => valueOf(trial, kind!))).toEqual(categories.slice(0, 5));
    const brushes = { kind: { of: ['1 ("1")', "null", "adam"] } };
    expect(trials.slice(0, 5).map((trial) => matches(trial, dimensions, brushes))).toEqual([
      false,
      true,
      false,
      false,
      true,
    ]);
    const conditions = conditionsOf(dimensions, brushes, trials, trials, { space, labels: {} });
    expect(conditions).toEqual(['params.kind?=["1",null,"adam"]']);
    // Links of earlier versions have one name for both.
    expect(recognized({ kind: { of: ["1", "adam"] } }, dimensions)["kind"]).toEqual({
      of: ["1 (1)", '1 ("1")', "adam"],
    });
    const labels = { kind: ["1", 1] };
    const raw = TRIALS.map((trial, i) => ({ ...trial, params: { kind: i % 2 } }));
    const shown = raw.map((trial) => ({ ...trial, params: readable(trial.params, labels) }));
    const named = dimensionsOf(shown, { metric: "accuracy", space: {}, labels });
    expect(conditionsOf(named, { kind: { of: ["1 (1)"] } }, shown, raw, { space: {}, labels })).toEqual([
      "params.kind?=[1]",
    ]);
  });

  it("is recognized in links of earlier versions, which had fewer digits", () => {
    const space = { lr: { type: "choice", categories: [0.0001, 0.00012345, 1234567] } };
    const trials = TRIALS.map((trial, i) => ({ ...trial, params: { lr: [0.0001, 0.00012345, 1234567][i % 3]! } }));
    const dimensions = dimensionsOf(trials, { metric: "accuracy", space });
    const of = (...labels: string[]) => recognized({ lr: { of: labels } }, dimensions)["lr"];
    expect(of("1e-4", "1.23e-4")).toEqual({ of: ["0.0001", "0.00012345"] });
    expect(of("1.23e6", "0.0001", ABSENT, "gone")).toEqual({ of: ["1234567", "0.0001", ABSENT, "gone"] });
  });

  it("includes categories that none of these trials has", () => {
    const space = { ...SPACE, width: { type: "choice", categories: [16, 32, 64, 128] } };
    const labels = { kind: ["adam", "sgd", "lion"] };
    const kind = { type: "choice", categories: [{}, {}, {}] };
    const raw = TRIALS.map((trial) => ({ ...trial, params: { ...trial.params, kind: trial.number % 2 } }));
    const shown = raw.map((trial) => ({ ...trial, params: readable(trial.params, labels) }));
    const dimensions = dimensionsOf(shown, { metric: "accuracy", space: { ...space, kind }, labels });
    const brushes = { width: { of: ["16", "128"] }, kind: { of: ["lion", "sgd"] } };
    expect(conditionsOf(dimensions, brushes, shown, raw, { space, labels })).toEqual([
      "params.width?=[16,128]",
      "params.kind?=[2,1]",
    ]);
  });
});

describe("the axes of the parallel coordinates", () => {
  it("are logarithmic or categorical like the parameters of the space, and the objective comes last", () => {
    const found = dimensionsOf(TRIALS, EXPERIMENT);
    expect(found.map((one) => [one.id, one.range?.log ?? one.categories])).toEqual([
      ["lr", true],
      ["width", ["16", "32", "64"]],
      [objectiveId("accuracy"), false],
    ]);
    expect(found[0]!.range).toMatchObject({ min: 1e-3, max: 10 });
  });

  it("may be called like what every object inherits", () => {
    const space = Object.fromEntries(
      ["constructor", "__proto__"].map((name) => [name, { type: "choice", categories: [1, 2] }]),
    );
    const trials = TRIALS.map((trial, i) => ({
      ...trial,
      params: i === 0 ? {} : Object.fromEntries(Object.keys(space).map((name) => [name, 1])),
    }));
    const dimensions = dimensionsOf(trials, { metric: "accuracy", space }).filter((one) => !one.objective);
    expect(dimensions.map((one) => one.id).sort()).toEqual(["__proto__", "constructor"]);
    for (const one of dimensions) expect(trials.slice(0, 2).map((trial) => valueOf(trial, one))).toEqual([ABSENT, "1"]);
    expect(trials.every((trial) => matches(trial, dimensions, {}))).toBe(true);
    const brushes = { constructor: { of: ["1"] } };
    expect(conditionsOf(dimensions, brushes, trials, trials, { space, labels: {} })).toEqual([
      "params.constructor?=[1]",
    ]);
  });

  it("have a category of its own for each number, even if they begin with the same digits", () => {
    const seed = { type: "choice", categories: [20240101, 20240102, 20240103] };
    const trials = TRIALS.map((trial, i) => ({ ...trial, params: { seed: 20240101 + (i % 2) } }));
    const dimensions = dimensionsOf(trials, { metric: "accuracy", space: { seed } });
    expect(dimensions[0]!.categories).toEqual(["20240101", "20240102", "20240103"]);
    const brushes = { seed: { of: ["20240102", "20240103"] } };
    expect(trials.filter((trial) => matches(trial, dimensions, brushes))).toEqual(trials.filter((_, i) => i % 2 === 1));
    expect(conditionsOf(dimensions, brushes, trials, trials, { space: { seed }, labels: {} })).toEqual([
      "params.seed?=[20240102,20240103]",
    ]);
  });

  it("come in the requested order, without constants", () => {
    expect(dimensionsOf(withBranch(), EXPERIMENT, ["width", "gone"]).map((one) => one.id)).toEqual([
      "width",
      "lr",
      "model/depth",
      objectiveId("accuracy"),
    ]);
  });

  it("have a place for the trials that lack the parameter", () => {
    const trials = withBranch();
    const depth = dimensionsOf(trials, EXPERIMENT).find((one) => one.id === "model/depth")!;
    expect(depth.optional).toBe(true);
    expect(valueOf(trials[0]!, depth)).toBe(ABSENT);
    expect(positionOf(depth, ABSENT)).toBeNull();
    expect(matches(trials[0]!, [depth], { "model/depth": { of: [ABSENT] } })).toBe(true);
    expect(matches(trials[1]!, [depth], { "model/depth": { of: [ABSENT] } })).toBe(false);
    expect(matches(trials[0]!, [depth], { "model/depth": { from: 0, to: 99 } })).toBe(false);
  });

  it("map every value to a position between 0 and 1, and back", () => {
    for (const dimension of dimensionsOf(TRIALS, EXPERIMENT)) {
      for (const trial of TRIALS) {
        const value = valueOf(trial, dimension);
        const at = positionOf(dimension, value);
        if (at === null) continue;
        expect(at).toBeGreaterThanOrEqual(0);
        expect(at).toBeLessThanOrEqual(1);
        if (dimension.range) expect(valueAt(dimension, at)).toBeCloseTo(value as number, 9);
      }
    }
  });

  it("choose only the trials that lie within the range chosen on each axis", () => {
    const dimensions = dimensionsOf(TRIALS, EXPERIMENT);
    const [lr, width] = dimensions as [(typeof dimensions)[0], (typeof dimensions)[0]];
    const brushes = { lr: choose(lr, 0.9, 0.6)!, width: choose(width, 0.3, 0.7)! };
    expect(brushes.width).toEqual({ of: ["32"] });
    const found = TRIALS.filter((trial) => matches(trial, dimensions, brushes)).map((trial) => trial.number);
    const expected = TRIALS.filter(({ params }) => {
      const at = Math.log((params["lr"] as number) / 1e-3) / Math.log(1e4);
      return at >= 0.6 && at <= 0.9 && params["width"] === 32;
    });
    expect(found).toEqual(expected.map((trial) => trial.number));
    expect(found.length).toBeGreaterThan(0);
    expect(choose(width, 0.01, 0.02)).toBeNull();
  });
});

describe("the arrow keys on an axis", () => {
  const [lr, width] = dimensionsOf(TRIALS, EXPERIMENT) as [Dimension, Dimension];

  it("narrow the chosen range from both ends, and with Shift widen it until everything is chosen", () => {
    const { min, max } = lr.range!;
    const raised = stepped(lr, undefined, true, false) as { from: number; to: number };
    expect(positionOf(lr, raised.from)).toBeCloseTo(0.1);
    expect(raised.to).toBe(max);
    const both = stepped(lr, raised, false, false) as { from: number; to: number };
    expect(positionOf(lr, both.to)).toBeCloseTo(0.9);
    const back = stepped(lr, both, false, true) as { from: number; to: number };
    expect(back.from).toBe(min);
    expect(stepped(lr, back, true, true)).toBeNull();
  });

  it("always leave something chosen", () => {
    let chosen = stepped(lr, undefined, true, false);
    for (let i = 0; i < 30; i++) chosen = stepped(lr, chosen ?? undefined, true, false);
    const { from, to } = chosen as { from: number; to: number };
    expect(to).toBeGreaterThan(from);
  });

  it("go over categories one by one", () => {
    expect(stepped(width, undefined, true, false)).toEqual({ of: ["32", "64"] });
    expect(stepped(width, { of: ["32", "64"] }, false, false)).toEqual({ of: ["32"] });
    expect(stepped(width, { of: ["32"] }, true, false)).toEqual({ of: ["32"] });
    expect(stepped(width, { of: ["32"] }, true, true)).toEqual({ of: ["32", "64"] });
  });
});

describe("the names of the axes", () => {
  it.each([2, 3, 4, 5, 9, 14])("do not touch, of %i axes at any distance", (count) => {
    const wide = 7.6; // pixels of a letter
    for (let step = 96; step < 500; step += 17)
      for (const lines of [1, 2]) {
        const names = Array.from({ length: count }, (_, i) => `parameter_${i}_of_the_block`.repeat(1 + (i % 2)));
        const shown = shownNames(names, lines, step);
        const ends = shown.map((name, i) => {
          const { textAnchor, x } = titlePlace(name, i, count);
          const left = i * step + x - { start: 0, middle: 0.5, end: 1 }[textAnchor] * wide * name.length;
          return [left, left + wide * name.length] as const;
        });
        for (let i = lines; i < count; i++) expect(ends[i]![0]).toBeGreaterThan(ends[i - lines]![1] + 2);
        expect(ends[0]![0]).toBeGreaterThanOrEqual(-50);
      }
  });

  it("are whole where there is room", () => {
    expect(shownNames(["learning_rate (log)", "accuracy"], 1, 400)).toEqual(["learning_rate (log)", "accuracy"]);
  });
});

describe("the Pareto front", () => {
  const objectives = [
    { metric: "accuracy", mode: "max" },
    { metric: "latency", mode: "min" },
  ] as const;

  it("contains the trials that no other one dominates, for two and for three objectives", () => {
    const next = random(3);
    for (const list of [objectives, [...objectives, { metric: "size", mode: "min" } as const]]) {
      const points: Point[] = Array.from({ length: 200 }, (_, number) => ({
        number,
        values: list.map(() => Math.round(20 * next())),
      }));
      const better = (a: number, b: number, mode: string) => (mode === "max" ? a > b : a < b);
      const dominated = (one: Point) =>
        points.some(
          (other) =>
            list.every(({ mode }, i) => !better(one.values[i]!, other.values[i]!, mode)) &&
            list.some(({ mode }, i) => better(other.values[i]!, one.values[i]!, mode)),
        );
      const fronts = frontsOf(points, [...list]);
      expect([...firstOf(fronts)].sort((a, b) => a - b)).toEqual(
        points.filter((one) => !dominated(one)).map((one) => one.number),
      );
      // Each further front is the Pareto front of what is left.
      for (let front = 2; front <= Math.max(...fronts.values()); front++) {
        const left = points.filter(({ number }) => fronts.get(number)! >= front);
        const expected = firstOf(frontsOf(left, [...list]));
        expect(new Set(left.filter(({ number }) => fronts.get(number) === front).map(({ number }) => number))).toEqual(
          expected,
        );
      }
      const rank = ranksByFront(fronts);
      for (const { number } of points) {
        const better = points.filter((one) => fronts.get(one.number)! < fronts.get(number)!);
        expect(rank.get(number)).toBe(better.length + 1);
      }
    }
  });

  it("leaves out trials that have not reported every objective", () => {
    const trials = TRIALS.map((trial, i) => ({
      ...trial,
      last: i < 3 ? { accuracy: 0.5, latency: i === 0 ? null : i } : { accuracy: 0.5 },
    })) as Trial[];
    expect(pointsOf(trials, [...objectives]).map((one) => one.number)).toEqual([1, 2]);
    expect([...firstOf(frontsOf(pointsOf(trials, [...objectives]), [...objectives]))]).toEqual([1]);
  });

  it("has its labels on the side of the better values, away from the line, and inside the chart", () => {
    const room = { right: 400, bottom: 300 };
    expect(numberPlace(200, 100, 14, ["max", "min"], room)).toEqual([208, 114]);
    expect(numberPlace(200, 100, 14, ["max", "max"], room)).toEqual([208, 94]);
    expect(numberPlace(200, 100, 14, ["min", "max"], room)).toEqual([178, 94]);
    expect(numberPlace(200, 100, 14, ["min", "min"], room)).toEqual([178, 114]);
    expect(numberPlace(395, 295, 14, ["max", "min"], room)).toEqual([373, 289]);
  });

  it("writes the numbers of points that lie close together as one text", () => {
    const dots = [
      { number: 7, x: 200, y: 100 },
      { number: 11, x: 203, y: 104 },
      { number: 3, x: 300, y: 100 },
    ];
    const found = numbersOf(dots, (text) => 7 * text.length, ["max", "min"], { right: 400, bottom: 300 });
    expect(found).toEqual([
      { text: "7, 11", at: [208, 114] },
      { text: "3", at: [308, 114] },
    ]);
  });

  it("is drawn as a staircase, and no trial of the front lies beyond it", () => {
    expect(
      staircase(
        [
          [1, 5],
          [3, 2],
          [2, 3],
        ],
        ["min", "min"],
      ),
    ).toEqual([
      [1, 5],
      [2, 5],
      [2, 3],
      [3, 3],
      [3, 2],
    ]);
    expect(
      staircase(
        [
          [1, 2],
          [3, 5],
        ],
        ["max", "min"],
      ),
    ).toEqual([
      [3, 5],
      [1, 5],
      [1, 2],
    ]);
    expect(staircase([[1, 5]], ["min", "min"])).toEqual([]);
  });
});
