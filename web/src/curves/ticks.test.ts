import { describe, expect, it } from "vitest";
import { random } from "../test/run";
import { labelSize, ticks, timeTick, type Room, type Scale } from "./ticks";

const ROOMS: Room[] = [
  { pixels: 320, horizontal: false },
  { pixels: 90, horizontal: false },
  { pixels: 900, horizontal: true },
  { pixels: 250, horizontal: true },
  { pixels: 56, horizontal: false },
];

function pixelOf(scale: Scale, value: number, min: number, max: number, pixels: number): number {
  return scale === "log"
    ? (Math.log(value / min) / Math.log(max / min)) * pixels
    : ((value - min) / (max - min)) * pixels;
}

/** Check what must hold for every axis: it ends, rises and stays inside, and no two labels touch or are equal. */
function check(scale: Scale, min: number, max: number, room: Room): void {
  const { at, labels } = ticks(scale, min, max, room);
  const must = (holds: boolean, what: string) => {
    if (!holds)
      throw new Error(
        `${what}: ${scale} ${min} to ${max} on ${room.pixels} px gives ${at.join(" ")} with ${labels.join(" ")}`,
      );
  };
  must(at.length <= 250 && labels.length === at.length, "too many ticks");
  must(
    at.every((value, i) => i === 0 || value > at[i - 1]!),
    "not in rising order",
  );
  const slack = (max - min) * 1e-6;
  must(
    at.every((value) => value >= min - slack && value <= max + slack),
    "outside of the axis",
  );
  const said = labels.flatMap((label, i) =>
    label ? [{ label, pixel: pixelOf(scale, at[i]!, min, max, room.pixels) }] : [],
  );
  must(said.length > 0, "no label");
  must(new Set(said.map((one) => one.label)).size === said.length, "the same label twice");
  const need = (i: number) => (labelSize(said[i]!.label, room) + labelSize(said[i - 1]!.label, room)) / 2;
  must(
    said.every((one, i) => i === 0 || one.pixel - said[i - 1]!.pixel >= need(i) - 1e-6),
    "labels touch",
  );
}

describe("ticks", () => {
  it("are at least two even on a low axis, so that a scale can be read", () => {
    for (const [min, max] of [
      [0.13, 0.87],
      [0.08, 0.92],
      [0.2, 0.9],
    ] as const)
      // prettier-ignore
      expect(ticks("linear", min, max, { pixels: 56, horizontal: false }).labels.length).toBeGreaterThan(1);
  });

  it("are finite on a log axis that starts just below a power of ten, where uPlot's never end", () => {
    for (let power = -12; power <= 12; power++) {
      for (let share = 0.95; share < 1; share += 0.0025) {
        for (const room of ROOMS) {
          check("log", share * 10 ** power, 1.02 * 10 ** power, room);
          check("log", share * 10 ** power, 9.7 * 10 ** (power + 1), room);
        }
      }
    }
  });

  it.each(["linear", "log", "count", "time"] as const)(
    "are few, in order, inside, and never touch, on any %s axis",
    (scale) => {
      const next = random(11);
      for (let i = 0; i < 4000; i++) {
        const positive = scale !== "linear";
        const from =
          (positive ? 1 : next() < 0.5 ? -1 : 1) *
          10 ** (scale === "time" || scale === "count" ? 7 * next() : 24 * next() - 12);
        const low = scale === "count" || scale === "time" ? (next() < 0.4 ? 0 : Math.floor(from)) : from;
        // The span is between a small part of the value itself and many times the value.
        const span = Math.max(
          Math.abs(low) * 10 ** (12 * next() - 8),
          scale === "count" ? 2 : scale === "time" ? 0.05 : 0,
        );
        check(scale, low, low + span, ROOMS[i % ROOMS.length]!);
      }
    },
  );

  it.each(["linear", "log"] as const)("are several for the smallest numbers on a %s axis", (scale) => {
    for (const [min, max] of [
      [1e-300, 5e-300],
      [1e-305, 2e-304],
      [3e-308, 9e-300],
      [1e-310, 9e-310],
      [5e-324, 1e-320],
    ] as const) {
      check(scale, min, max, ROOMS[0]!);
      expect(ticks(scale, min, max, ROOMS[0]!).labels.filter(Boolean).length).toBeGreaterThan(2);
    }
    check("linear", -2e-303, 2e-303, ROOMS[0]!);
  });

  it("have the digits of the numbers at which they stand, on a log axis too", () => {
    expect(ticks("log", 1e-20, 3e-20, ROOMS[0]!).labels).toEqual(["1e-20", "1.5e-20", "2e-20", "2.5e-20", "3e-20"]);
  });

  it("are one for a single value, and none without a range", () => {
    expect(ticks("linear", 0.861, 0.938, { pixels: 56, horizontal: false }).labels).toEqual(["0.88", "0.90", "0.92"]);
    expect(ticks("linear", 3, 3, ROOMS[0]!)).toEqual({ at: [3], labels: ["3"] });
    expect(ticks("log", 0.5, 0.5, ROOMS[0]!).at).toHaveLength(1);
    for (const [min, max] of [
      [NaN, 1],
      [0, Infinity],
      [2, 1],
    ] as const)
      expect(ticks("linear", min, max, ROOMS[0]!).at).toEqual([]);
  });

  it("have more than one label even in a small chart", () => {
    expect(ticks("linear", 0.06, 0.94, { pixels: 100, horizontal: false }).labels).toEqual([
      "0.2",
      "0.4",
      "0.6",
      "0.8",
    ]);
  });

  it("stand at round numbers", () => {
    expect(ticks("linear", 0.08, 1.01, ROOMS[0]!).labels).toEqual([
      "0.1",
      "0.2",
      "0.3",
      "0.4",
      "0.5",
      "0.6",
      "0.7",
      "0.8",
      "0.9",
      "1.0",
    ]);
    expect(ticks("count", 0, 27, ROOMS[3]!).labels).toEqual(["0", "5", "10", "15", "20", "25"]);
    expect(ticks("log", 0.9, 30, ROOMS[2]!).labels.filter(Boolean)).toContain("10");
    expect(ticks("time", 0, 620, ROOMS[2]!).labels).toEqual([
      "0",
      "1 min",
      "2 min",
      "3 min",
      "4 min",
      "5 min",
      "6 min",
      "7 min",
      "8 min",
      "9 min",
      "10 min",
    ]);
  });

  it("label times briefly", () => {
    expect([0, 0.5, 10, 60, 90, 3600, 5400, 86_400].map(timeTick)).toEqual([
      "0",
      "0.5 s",
      "10 s",
      "1 min",
      "1 min 30 s",
      "1 h",
      "1 h 30 min",
      "1 d",
    ]);
  });
});
