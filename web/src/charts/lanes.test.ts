import { describe, expect, it } from "vitest";
import type { Series } from "../api/types";
import type { Source } from "../curves/geometry";
import {
  ancestry,
  lanesOf,
  partsOf,
  placesOf,
  shadesOfParam,
  shadesOfScores,
  shareOfTrial,
  type Piece as Bar,
} from "./lanes";

type Piece = Series["segments"][number];

function member(number: number, ...segments: [Piece["cause"], number[], (number | null)[]][]): Series {
  return {
    trial_id: `trl_${number}`,
    number,
    state: "completed",
    best_value: null,
    segments: segments.map(([cause, x, y], i) => ({ ordinal: i + 1, cause, last_iteration: x.length, x, y })),
  };
}

// 1 takes over from 0 after iteration 4, 2 from 1 after iteration 8.
const SERIES = [
  member(0, ["start", [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]], ["resume", [5, 6, 7, 8], [0.5, 0.6, 0.7, 0.8]]),
  member(1, ["start", [1, 2, 3, 4], [0, 0, 0, 0]], ["exploit", [5, 6, 7, 8], [0.5, 0.6, 0.8, null]]),
  member(2, ["start", [1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0, 0, 0.1]], ["exploit", [9, 10], [0.9, 0.95]]),
  member(3),
];
const SOURCES: Record<string, Source> = {
  "1.2": { trial: 0, ordinal: 1, iteration: 4 },
  "2.2": { trial: 1, ordinal: 2, iteration: 8 },
};
const source = (trial: number, ordinal: number) => SOURCES[`${trial}.${ordinal}`];
const RANK = new Map([
  [2, 1],
  [1, 2],
  [0, 2],
  [3, 4],
]);

describe("the arrows of one iteration", () => {
  const arrow = (donor: number, recipient: number, at = 4) => ({ donor, donorAt: at, recipient, at, ordinal: 2 });
  const row = new Map([0, 1, 2, 3, 4, 5, 6].map((trial) => [trial, trial]));

  it("have different positions if they cross the same lanes, with the shorter ones inside", () => {
    expect(placesOf([arrow(0, 6), arrow(1, 3), arrow(0, 4), arrow(99, 2)], row)).toEqual(
      new Map([
        ["3.2", 0],
        ["4.2", 1],
        ["6.2", 2],
      ]),
    );
  });

  it("share a position if they cross no common lane", () => {
    const places = placesOf([arrow(3, 1), arrow(3, 5), arrow(1, 4, 8)], row);
    expect(places).toEqual(
      new Map([
        ["1.2", 0],
        ["5.2", 0],
        ["4.2", 0],
      ]),
    );
  });
});

describe("the lanes of a population", () => {
  const lanes = lanesOf({ series: SERIES }, source, RANK);

  it("come best first, without members that have not reported", () => {
    expect(lanes.order).toEqual([2, 0, 1]);
    expect(lanes.end).toBe(10);
  });

  it("have a piece for each segment, with the last value reported in it", () => {
    expect(lanes.pieces.filter((piece) => piece.trial === 1)).toEqual([
      { trial: 1, ordinal: 1, cause: "start", from: 0, to: 4, kept: 4, score: 0, params: null },
      { trial: 1, ordinal: 2, cause: "exploit", from: 4, to: 8, kept: 8, score: 0.8, params: null },
    ]);
  });

  it("are joined from donor to recipient", () => {
    expect(lanes.handovers).toEqual([
      { donor: 0, donorAt: 4, recipient: 1, at: 4, ordinal: 2 },
      { donor: 1, donorAt: 8, recipient: 2, at: 8, ordinal: 2 },
    ]);
  });

  it("show which segments led to a trial's weights", () => {
    expect([...ancestry(lanes, source, 2).keys()].sort()).toEqual(["0.1", "1.2", "2.2"]);
    expect([...ancestry(lanes, source, 0).keys()].sort()).toEqual(["0.1", "0.2"]);
    expect([...ancestry(lanes, () => undefined, 2).keys()]).toEqual(["2.2"]);
  });

  it("do not overlap if a trial went back to a checkpoint, and show a donor only up to the fork", () => {
    // 1 trained to 8, took over what 0 had after 6, and trained from there.
    const back = [
      member(0, ["start", [1, 2, 3, 4, 5, 6, 7, 8, 9], Array.from({ length: 9 }, () => 1)]),
      member(1, ["start", [1, 2, 3, 4, 5, 6, 7, 8], Array.from({ length: 8 }, () => 0)], ["exploit", [7, 8], [1, 1]]),
    ];
    const from = (trial: number) => (trial === 1 ? { trial: 0, ordinal: 1, iteration: 6 } : undefined);
    const gone = lanesOf({ series: back }, from, RANK);
    const [donor, before, after] = gone.pieces;
    expect([before!.kept, after!.kept]).toEqual([6, 8]);
    expect(partsOf(before!, null)).toEqual([
      { from: 0, to: 6, given: false, strong: true },
      { from: 6, to: 8, given: true, strong: true },
    ]);
    const chain = ancestry(gone, from, 1);
    expect(partsOf(donor!, chain)).toEqual([
      { from: 0, to: 6, given: false, strong: true },
      { from: 6, to: 9, given: false, strong: false },
    ]);
    expect(partsOf(before!, chain).some((part) => part.strong)).toBe(false);
  });

  it("end if the sources form a cycle, which valid data never do", () => {
    const circle = (trial: number) => ({ trial: trial === 1 ? 2 : 1, ordinal: 2, iteration: 4 });
    expect([...ancestry(lanes, circle, 1).keys()].sort()).toEqual(["1.2", "2.2"]);
  });

  it("are colored by the size of their score", () => {
    const { share, ends } = shadesOfScores(lanes.pieces, "max");
    const at = (score: number) => share({ score } as Bar);
    expect([at(0), at(0.475), at(0.95)].map((one) => Math.round(one! * 100))).toEqual([0, 50, 100]);
    expect(shadesOfScores(lanes.pieces, "min").share({ score: 0.95 } as Bar)).toBe(0);
    expect(ends).toEqual([0, 0.95]);
  });

  it("share their scale with the dots of the trials", () => {
    const scores = shadesOfScores(lanes.pieces, "max");
    const trial = { best_value: 0.475, params: { lr: 0.01 } };
    expect(shareOfTrial(scores, trial)).toBe(scores.share({ score: 0.475 } as Bar));
    expect(shareOfTrial(scores, { ...trial, best_value: null })).toBeNull();
    const rates = shadesOfParam(
      [0.001, 0.1].map((lr) => ({ params: { lr } }) as unknown as Bar),
      "lr",
      true,
    );
    expect(shareOfTrial(rates, trial)).toBeCloseTo(0.5, 9);
    const odd = [{ constructor: 1 }, {}].map((params) => ({ params }) as unknown as Bar);
    expect(odd.map(shadesOfParam(odd, "constructor").share)).toEqual([0.5, null]);
  });

  it("are colored on a log scale if scores differ by orders of magnitude", () => {
    const losses = [1000, 10, 0.1].map((score) => ({ score }) as Bar);
    const { share, ends, log } = shadesOfScores(losses, "min");
    expect(losses.map(share).map((one) => Math.round(one! * 100))).toEqual([0, 50, 100]);
    expect([ends, log]).toEqual([[1000, 0.1], true]);
  });

  it("are colored by a parameter of their segments", () => {
    const segments = [
      { trial_number: 0, ordinal: 1, params: { lr: 0.001, width: 16, kind: "a" } },
      { trial_number: 1, ordinal: 1, params: { lr: 0.1, width: 32, kind: "b" } },
      { trial_number: 1, ordinal: 2, params: { lr: 0.01, width: 24, kind: "a" } },
    ];
    const { pieces } = lanesOf({ series: SERIES }, source, RANK, segments);
    const shares = (name: string) => {
      const { share } = shadesOfParam(pieces, name);
      return pieces.filter((one) => one.trial < 2).map((one) => share(one) && Math.round(share(one)! * 100) / 100);
    };
    expect(shares("lr")).toEqual([0, null, 1, 0.5]); // on a log scale
    expect(shares("width")).toEqual([0, null, 1, 0.5]);
    expect(shares("kind")).toEqual([0, null, 1, 0]);
    expect(shadesOfParam(pieces, "lr").ends).toEqual([0.001, 0.1]);
    // What the space says goes before what the values look like.
    const linear = shadesOfParam(pieces, "lr", false);
    expect([linear.log, shadesOfParam(pieces, "width", true).log]).toEqual([false, true]);
    expect(linear.share(pieces.find((one) => one.params?.["lr"] === 0.01)!)).toBeCloseTo(0.0909, 3);
    expect(shadesOfParam(pieces, "kind").values).toEqual([
      ["a", 0],
      ["b", 1],
    ]);
    // None is a choice like any other.
    const schedules = [null, "cosine"].map((schedule) => ({ params: { schedule } }) as unknown as Bar);
    const { share, values } = shadesOfParam(schedules, "schedule");
    expect(schedules.map(share)).toEqual([1, 0]);
    expect(values).toEqual([
      ["cosine", 0],
      ["null", 1],
    ]);
  });
});
