import { describe, expect, it } from "vitest";
import type { Series } from "../api/types";
import { after, nothing, random, story } from "../test/run";
import {
  donorPoint,
  extent,
  holds,
  inView,
  layOut,
  leftOutByLog,
  logWords,
  nearest,
  ofReplay,
  partAfter,
  pixel,
  pointAt,
  type Axis,
} from "./geometry";

type Cause = Series["segments"][number]["cause"];

function series(number: number, ...segments: [number[], (number | null)[], Cause?][]): Series {
  return {
    trial_id: `trl_${number}`,
    number,
    state: "running",
    best_value: null,
    segments: segments.map(([x, y, cause], i) => ({
      ordinal: i + 1,
      cause: cause ?? (i ? "resume" : "start"),
      last_iteration: x.length,
      x,
      y,
    })),
  };
}

const X: Axis = { range: { min: 0, max: 10 }, log: false, from: 0, to: 100 };
const Y: Axis = { range: { min: 0, max: 1 }, log: false, from: 100, to: 0 };

describe("layOut", () => {
  it("interrupts the line at gaps and where a segment starts over", () => {
    const [line] = layOut(
      [
        series(
          0,
          [
            [1, 2, 3],
            [0, null, 1],
          ],
          [[3], [0.5], "retry"],
        ),
      ],
      X,
      Y,
      "step",
    );
    expect([...line!.points]).toEqual([10, 100, 20, NaN, 30, 0, NaN, NaN, 30, 50, NaN, NaN]);
  });

  it("interrupts the line where a trial takes over another one's weights, but not where a replayed schedule changes parameters", () => {
    const exploited = series(0, [[1, 2], [0, 1]], [[3], [0.5], "exploit"]); // prettier-ignore
    const [bred, own] = layOut([exploited, ofReplay(exploited)], X, Y, "step");
    expect([...bred!.points]).toEqual([10, 100, 20, 0, NaN, NaN, 30, 50, NaN, NaN]);
    expect(bred!.exploits).toEqual([{ at: 3, ordinal: 2 }]);
    expect([...own!.points]).toEqual([10, 100, 20, 0, 30, 50, NaN, NaN]);
    expect(own!.exploits).toEqual([{ at: 2, ordinal: 2, own: true }]);
    expect(ofReplay(exploited)).toBe(ofReplay(exploited)); // so that an unchanged curve is not drawn again
    expect(pointAt(ofReplay(exploited), 2, "step")).toMatchObject({ exploited: false, changed: true });
  });

  it("continues the line across a pause over steps, but not over time", () => {
    const paused = [
      series(
        0,
        [
          [1, 2],
          [0, 1],
        ],
        [[3], [0.5]],
      ),
    ];
    expect([...layOut(paused, X, Y, "step")[0]!.points]).toEqual([10, 100, 20, 0, 30, 50, NaN, NaN]);
    expect([...layOut(paused, X, Y, "time")[0]!.points]).toEqual([10, 100, 20, 0, NaN, NaN, 30, 50, NaN, NaN]);
    for (const axis of ["trial_time", "user_step", "metric"] as const)
      expect([...layOut(paused, X, Y, axis)[0]!.points]).toEqual([10, 100, 20, 0, 30, 50, NaN, NaN]);
  });

  it("interrupts the line at a retry, even over the trial's own time, which continues", () => {
    const retried = series(
      0,
      [
        [1, 2],
        [0, 1],
      ],
      [[3, 4], [0.5, 0.5], "retry"],
    );
    const broken = [10, 100, 20, 0, NaN, NaN, 30, 50, 40, 50, NaN, NaN];
    expect([...layOut([retried], X, Y, "trial_time")[0]!.points]).toEqual(broken);
    const fromEarlier = series(
      0,
      [
        [1, 2],
        [0, 1],
      ],
      [[2, 3], [0.5, 0.5], "retry"],
    );
    expect([...layOut([fromEarlier], X, Y, "step")[0]!.points].slice(4, 6)).toEqual([NaN, NaN]);
  });

  it.each(["step", "time"] as const)("interrupts the line at an exploit, and marks where it continues (%s)", (axis) => {
    const bred = series(
      0,
      [
        [1, 2],
        [0, 1],
      ],
      [[3, 4], [0.5, 0.5], "exploit"],
      [[5], [0.25], "exploit"],
    );
    const [line] = layOut([bred], X, Y, axis);
    expect([...line!.points]).toEqual([10, 100, 20, 0, NaN, NaN, 30, 50, 40, 50, NaN, NaN, 50, 75, NaN, NaN]);
    expect(line!.exploits).toEqual([
      { at: 3, ordinal: 2 },
      { at: 6, ordinal: 3 },
    ]);
    expect(line!.exploits.map(({ at }) => pointAt(bred, at, axis)?.exploited)).toEqual([true, true]);
    expect(pointAt(bred, 4, axis)).toEqual({ x: 4, y: 0.5, ordinal: 2, exploited: false });
  });

  it("finds the donor's point from which an exploit continued", () => {
    const donor = series(
      1,
      [
        [1, 2, 3, 4],
        [0.1, 0.2, null, 0.4],
      ],
      [[5, 6], [0.5, 0.6], "exploit"],
    );
    const at = (iteration: number, ordinal: number | null) =>
      donorPoint(donor, { trial: 1, ordinal, iteration }, Infinity, "step");
    expect(at(4, 1)).toBe(3);
    expect(at(3, 1)).toBe(1);
    expect(at(6, 1)).toBe(3);
    expect(at(6, 2)).toBe(6);
    expect(at(0, null)).toBeNull();
    expect(donorPoint(donor, { trial: 1, ordinal: 2, iteration: 6 }, 5.5, "time")).toBe(5);
    expect(donorPoint(donor, { trial: 1, ordinal: 2, iteration: 6 }, 5.5, "trial_time")).toBeNull();
    expect(pointAt(donor, at(6, 2)!, "step")?.y).toBe(0.6);
  });

  it("leaves out what a log axis cannot show", () => {
    const log: Axis = { range: { min: 0.01, max: 1 }, log: true, from: 100, to: 0 };
    expect(pixel(log, 0.1)).toBeCloseTo(50);
    expect(pixel(log, 0)).toBeNaN();
  });

  it("gives indexes that pointAt maps back to the reported point", () => {
    const curves = after(nothing(), story(20, 3)).byStep.series;
    layOut(curves, X, Y, "step").forEach((line, i) => {
      for (let at = 0; at < line.points.length / 2; at++) {
        const point = pointAt(curves[i]!, at, "step");
        if (point === null || point.y === null) expect(line.points[2 * at + 1]).toBeNaN();
        else expect([line.points[2 * at], line.points[2 * at + 1]]).toEqual([pixel(X, point.x), pixel(Y, point.y)]);
      }
    });
  });
});

describe("inView", () => {
  it("finds a line that crosses the view without a point inside it", () => {
    const through = layOut(
      [
        series(0, [
          [-5, 15],
          [0.5, 0.5],
        ]),
        series(1, [
          [-5, 15],
          [1.5, 1.2],
        ]),
        series(2, [
          [11, 12],
          [0, 1],
        ]),
        series(3, [
          [-2, 5],
          [0.5, 1.5],
        ]),
      ],
      X,
      Y,
      "step",
    );
    expect(through.map((line) => inView(line, 100, 100))).toEqual([true, false, false, true]);
    expect(inView(layOut([series(4, [[1], [null]])], X, Y, "step")[0]!, 100, 100)).toBe(false);
  });
});

describe("holds", () => {
  it("keeps an axis that contains all points without much empty space", () => {
    const points = { min: 1, max: 90 };
    expect(holds({ min: 0, max: 100 }, { min: 0, max: 91 }, points, false)).toBe(true);
    expect(holds({ min: 0, max: 89 }, { min: 0, max: 91 }, points, false)).toBe(false);
    expect(holds({ min: 0, max: 200 }, { min: 0, max: 91 }, points, false)).toBe(false);
    expect(holds({ min: 0.9, max: 200 }, { min: 0.9, max: 91 }, points, true)).toBe(true);
  });
});

describe("nearest", () => {
  const lines = layOut(
    [
      series(0, [
        [0, 10],
        [0, 0],
      ]),
      series(1, [
        [0, 10],
        [0.5, 0.5],
      ]),
      series(2, [
        [2, 8],
        [1, null],
      ]),
    ],
    X,
    Y,
    "step",
  );

  it("finds the closest line, even between its points", () => {
    expect(nearest(lines, 48, 60, 24)).toMatchObject({ number: 1, at: 0 });
    expect(nearest(lines, 90, 95, 24)).toMatchObject({ number: 0, at: 1, distance: 5 });
  });

  it("finds a line that runs to the left, as over a falling metric", () => {
    const falling = layOut(
      [
        series(5, [
          [9, 1],
          [0.5, 0.5],
        ]),
      ],
      X,
      Y,
      "metric",
    );
    expect(nearest(falling, 50, 55, 24)).toMatchObject({ number: 5, distance: 5 });
  });

  it("finds single points, and nothing out of reach", () => {
    expect(nearest(lines, 22, 3, 24)?.number).toBe(2);
    expect(nearest(lines, 50, 25, 20)).toBeNull();
    expect(nearest(lines, 80, 0, 24)).toBeNull();
  });

  it("prefers the line that is drawn on top", () => {
    const same = layOut(
      [
        series(3, [
          [0, 10],
          [0.5, 0.5],
        ]),
        series(4, [
          [0, 10],
          [0.5, 0.5],
        ]),
      ],
      X,
      Y,
      "step",
    );
    expect(nearest(same, 50, 50, 24)?.number).toBe(4);
  });
});

describe("extent", () => {
  const many = Array.from({ length: 30 }, (_, i) =>
    series(i, [
      [1, 2],
      [0.6 + 0.001 * i, 0.7],
    ]),
  );
  const diverged = [
    ...many,
    series(99, [
      [1, 2],
      [0.5, 1e9],
    ]),
  ];

  it("shows everything with a little room", () => {
    const view = extent(many, { log: false, logX: false, trim: null })!;
    expect(view.y.min).toBeLessThan(0.6);
    expect(view.y.max).toBeGreaterThan(0.7);
    expect(view.x.min).toBeLessThan(1);
    expect(view.outside).toEqual({ below: 0, above: 0 });
  });

  it("extends to whole numbers around the first point of a search, not to hundredths of an iteration", () => {
    for (const logX of [false, true]) {
      const { x } = extent([series(1, [[1], [0.5]])], { log: false, logX, trim: null })!;
      expect([x.min, x.max]).toEqual(logX ? [0.5, 2] : [0.5, 1.5]);
    }
  });

  it("leaves out the start of a population whose members end close to each other", () => {
    const bred = Array.from({ length: 8 }, (_, i) =>
      series(
        i,
        [
          [1, 2, 3, 4],
          [0.1, 0.4, 0.7, 0.9 + 0.001 * i],
        ],
        [[5, 6, 7, 8], [0.95, 0.955, 0.955, 0.96 + 0.001 * i], i < 4 ? "exploit" : "resume"],
      ),
    );
    const view = extent(bred, { log: false, logX: false, trim: "max" })!;
    expect(view.y.min).toBeGreaterThan(0.88);
    expect(view.y.min).toBeLessThan(0.95);
    expect(view.y.max).toBeGreaterThan(0.967);
    expect(view.outside).toEqual({ below: 32, above: 0 });
    expect(view.late).toEqual({ until: 5, side: "below" });
    expect(extent(bred, { log: false, logX: false, trim: null })!.late).toBeNull();
    expect(extent(bred, { log: false, logX: false, trim: null })!.y.min).toBeLessThan(0.1);
    expect(extent(bred.slice(4), { log: false, logX: false, trim: "max" })!.y.min).toBeLessThan(0.1);
  });

  it("leaves out diverged values if small values are good, and counts them", () => {
    const view = extent(diverged, { log: false, logX: false, trim: "min" })!;
    expect(view.y.max).toBeLessThan(1);
    expect(view.outside).toEqual({ below: 0, above: 1 });
    expect(view.late, "the other curves are shown from their beginning").toBeNull();
    expect(extent(diverged, { log: false, logX: false, trim: null })!.y.max).toBeGreaterThan(1e8);
  });

  it("never leaves out the better side", () => {
    expect(extent(diverged, { log: false, logX: false, trim: "max" })!.y.max).toBeGreaterThan(1e8);
  });

  it("trims values only if the others would otherwise look like a flat line", () => {
    const close = Array.from({ length: 80 }, (_, i) => series(i, [[1], [0.9 + 0.00025 * i]]));
    const outside = (worst: number) =>
      extent([...close, series(98, [[1], [worst]])], { log: false, logX: false, trim: "max" })!.outside;
    expect(outside(-40)).toEqual({ below: 1, above: 0 });
    expect(outside(0.5)).toEqual({ below: 0, above: 0 });
  });

  it("shows a learning curve from its first report on", () => {
    const curve = Array.from({ length: 13 }, (_, i) => 0.95 - 0.85 * Math.exp(-1.5 * i));
    const learned = Array.from({ length: 20 }, (_, i) => series(i, [curve.map((_, k) => k + 1), curve]));
    const view = extent(learned, { log: false, logX: false, trim: "max" })!;
    expect(view.y.min).toBeLessThan(0.1);
    expect(view.outside).toEqual({ below: 0, above: 0 });
  });

  it("can trim both sides for a metric that is not an objective", () => {
    const view = extent([...diverged, series(98, [[1], [-1e9]])], { log: false, logX: false, trim: "both" })!;
    expect(view.outside).toEqual({ below: 1, above: 1 });
  });

  it("leaves out points at or below zero on a horizontal log axis", () => {
    const view = extent(
      [
        series(0, [
          [0, 1, 10],
          [5, 0.5, 0.6],
        ]),
      ],
      { log: false, logX: true, trim: null },
    )!;
    expect(view.points).toEqual({ x: { min: 1, max: 10 }, y: { min: 0.5, max: 0.6 } });
    expect(view.x.min).toBeGreaterThan(0.9);
  });

  it("leaves one diverged trial out of many long ones", () => {
    const next = random(9);
    const large = Array.from({ length: 60 }, (_, i) =>
      series(i, [Array.from({ length: 500 }, (_, k) => k), Array.from({ length: 500 }, () => 0.5 + 0.3 * next())]),
    );
    const view = extent([...large, series(99, [[1], [1e6]])], { log: false, logX: false, trim: "min" })!;
    expect(view.outside).toEqual({ below: 0, above: 1 });
    expect(view.y.max).toBeLessThan(1);
  });

  it("is positive on a log axis, has some height for a single value, and is missing without points", () => {
    const view = extent(
      [
        series(0, [
          [1, 2, 3],
          [-1, 0, 0.5],
        ]),
      ],
      { log: true, logX: false, trim: null },
    )!;
    expect(view.y.min).toBeGreaterThan(0);
    expect(view.y.max).toBeGreaterThan(view.y.min);
    expect(extent([series(0, [[4], [0]])], { log: false, logX: false, trim: "max" })!.y).toEqual({
      min: -0.5,
      max: 0.5,
    });
    expect(extent([series(0, [[1], [null]])], { log: false, logX: false, trim: "max" })).toBeNull();
  });
});

describe("a logarithmic axis without positive values", () => {
  const none = series(0, [
    [0, 1],
    [-1, 0],
  ]);
  it("shows nothing, and says why", () => {
    expect(logWords([none], true, false)).toMatch(/^No value is positive/);
    expect(logWords([none, series(1, [[0], [0.5]])], true, true)).toMatch(/^No place on the horizontal axis is/);
  });

  it("is not to blame if it shows something, or if there is nothing to show", () => {
    expect(logWords([none, series(1, [[4], [0.5]])], true, true)).toBeNull();
    expect(logWords([none], false, false)).toBeNull();
    expect(logWords([series(0, [[1], [null]])], true, true)).toBeNull();
    expect(logWords([], true, true)).toBeNull();
  });

  it("says how many points it leaves out", () => {
    const some = series(1, [[0, 1, 2, 3], [0.5, 0, -1, 2]]); // prettier-ignore
    expect(leftOutByLog([some], true, false)).toBe("2 points at or below 0 are not shown");
    expect(leftOutByLog([some, none], false, true)).toBe("2 points at or below 0 are not shown");
    expect(leftOutByLog([some], false, false)).toBeNull();
    expect(leftOutByLog([none], true, false)).toBeNull();
  });
});

describe("partAfter", () => {
  const whole = { min: 0, max: 16 };

  it("halves and doubles a part around its middle, and moves it, within the whole axis", () => {
    expect(partAfter(whole, whole, false, 0.5, 0)).toEqual({ min: 4, max: 12 });
    expect(partAfter({ min: 4, max: 12 }, whole, false, 1, 0.25)).toEqual({ min: 6, max: 14 });
    expect(partAfter({ min: 4, max: 12 }, whole, false, 1, 1)).toEqual({ min: 8, max: 16 });
    expect(partAfter({ min: 0, max: 4 }, whole, false, 2, 0)).toEqual({ min: 0, max: 8 });
    expect(partAfter({ min: 0, max: 8 }, whole, false, 2, 0)).toBe(whole);
  });

  it("halves a logarithmic axis by its powers, and ends before the numbers do", () => {
    const part = partAfter({ min: 1, max: 1e4 }, { min: 1, max: 1e4 }, true, 0.5, 0);
    expect(part.min).toBeCloseTo(10, 9);
    expect(part.max).toBeCloseTo(1000, 6);
    let shown = whole;
    for (let i = 0; i < 200; i++) shown = partAfter(shown, whole, false, 0.5, 0);
    expect(shown.max).toBeGreaterThan(shown.min);
  });
});
