/**
 * The positions and labels of an axis's ticks. uPlot's own splits are not used: those of its log axis never end when
 * the axis starts just below a power of ten, and its labels run into each other when they are long.
 */

import { duration } from "../format";

export interface Ticks {
  /** The positions of grid lines, in ascending order. */
  at: number[];
  /** One label for each; empty if there is no room for it. */
  labels: string[];
}

export interface Room {
  /** Length of the axis in pixels. */
  pixels: number;
  /** Labels stand side by side, so a long one needs more room. */
  horizontal: boolean;
}

export type Scale = "linear" | "log" | "count" | "time";

const CHARACTER = 6.6;
const GAP = 14;
const LINE = 26;
/** On an axis shorter than this, in pixels, grid lines are closer together, since a single label would not show a scale. */
const LOW = 80;
const LOW_LINE = 14;
const MIDDLE = 160;
const MIDDLE_LINE = 20;
const MAX_TICKS = 100;

const [MINUTE, HOUR, DAY] = [60, 3600, 86_400];

/** Intervals between ticks that suit a clock, in seconds. */
const TIME_STEPS = [
  0.01,
  0.02,
  0.05,
  0.1,
  0.2,
  0.5,
  1,
  2,
  5,
  10,
  15,
  30,
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 7, 14, 30, 60, 120, 365, 730, 3650].map((n) => n * DAY),
];

export function ticks(scale: Scale, min: number, max: number, room: Room): Ticks {
  if (!Number.isFinite(min) || !Number.isFinite(max) || max < min || room.pixels <= 0) return { at: [], labels: [] };
  if (scale === "log" && min > 0) return logTicks(min, max, room);
  if (scale === "time") return stepTicks(min, max, room, timeSteps(), timeTick);
  return stepTicks(min, max, room, decimalSteps((max - min) / MAX_TICKS, scale === "count"), null);
}

export function timeTick(seconds: number): string {
  if (seconds === 0) return "0";
  return seconds < 10
    ? `${Number(seconds.toPrecision(3))} s`
    : duration(seconds).replace(" 0 min", "").replace(" 0 h", "");
}

/** Pixels that a label takes along the axis, with the room to its neighbor. */
export function labelSize(label: string, { horizontal, pixels }: Room): number {
  return horizontal ? label.length * CHARACTER + GAP : pixels < LOW ? LOW_LINE : pixels < MIDDLE ? MIDDLE_LINE : LINE;
}

/** The width of a vertical axis in pixels, unless its labels need more. */
const WIDTH = 58;

/** Return how wide a vertical axis has to be. A label that is cut off at the left would look like another number. */
export function widthFor(labels: readonly string[] | null): number {
  return Math.max(WIDTH, ...(labels ?? []).map((label) => label.length * CHARACTER + GAP));
}

/** Ticks at the multiples of the smallest step whose labels do not touch. */
function stepTicks(
  min: number,
  max: number,
  room: Room,
  steps: Iterable<number>,
  say: ((value: number) => string) | null,
): Ticks {
  if (max - min <= 4 * Number.EPSILON * Math.max(Math.abs(min), Math.abs(max))) return single(min, say);
  let thinned: Ticks | null = null;
  for (const step of steps) {
    if ((max - min) / step > MAX_TICKS) continue;
    const label = say ?? decimalLabel(step);
    const first = Math.ceil(min / step - 1e-9);
    const last = Math.floor(max / step + 1e-9);
    const at: number[] = [];
    for (let k = first; k <= last && at.length <= MAX_TICKS; k++) at.push(clean(k * step, step));
    if (at.length === 0) return single(min, say);
    const labels = at.map(label);
    const distance = (step / (max - min)) * room.pixels;
    const fits = labels.every((one) => labelSize(one, room) <= distance) && new Set(labels).size === labels.length;
    if (at.length === 1 && thinned !== null) return thinned;
    if (at.length === 1 || fits) return { at, labels };
    // With a single label, an axis would have no scale: every other one of the finer ticks is better.
    const longest = Math.max(...labels.map((one) => labelSize(one, room)));
    const every = Math.ceil(longest / distance);
    thinned =
      every < at.length && new Set(labels).size === labels.length
        ? { at: at.filter((_, i) => i % every === 0), labels: labels.filter((_, i) => i % every === 0) }
        : null;
  }
  return single(min, say);
}

function single(value: number, say: ((value: number) => string) | null): Ticks {
  return { at: [value], labels: [say ? say(value) : String(Number(value.toPrecision(6)))] };
}

/** The smallest power of ten above zero. */
const SMALLEST = -323;

/** 1, 2 and 5 times powers of ten, from the first at or above `from`. */
function* decimalSteps(from: number, whole: boolean): Generator<number> {
  const first = Math.max(SMALLEST, Math.floor(Math.log10(from)));
  for (let power = whole ? Math.max(0, first) : first; power <= 308; power++) {
    for (const digit of [1, 2, 5]) {
      const step = Number(`${digit}e${power}`);
      if (step >= from) yield step;
    }
  }
}

function* timeSteps(): Generator<number> {
  yield* TIME_STEPS;
  for (let power = 1; power <= 12; power++) for (const digit of [1, 2, 5]) yield digit * 10 ** power * 365 * DAY;
}

/** Round away the error of binary fractions. */
function clean(value: number, step: number): number {
  const decimals = Math.ceil(-Math.log10(step));
  return decimals > 0 && decimals <= 20 ? Number(value.toFixed(decimals)) : value;
}

/** Format with as many decimals as tell two neighbors apart, or as powers of ten if that would be long. */
function decimalLabel(step: number): (value: number) => string {
  const decimals = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  return (value) => {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e6 || decimals > 5) {
      const digits = Math.min(15, Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9)));
      return value
        .toExponential(digits)
        .replace("e+", "e")
        .replace(/(\.\d*?)0+e/, "$1e")
        .replace(".e", "e");
    }
    return value.toFixed(Math.min(decimals, 20));
  };
}

/** Grid lines at the digits of each power of ten, labels if there is room: powers first, then 2 and 5, then the others. */
function logTicks(min: number, max: number, room: Room): Ticks {
  const [low, high] = [Math.max(SMALLEST, Math.floor(Math.log10(min))), Math.ceil(Math.log10(max))];
  // Less than a power of ten with few round numbers in it: ticks as on a linear axis, with fewer of them if they come close.
  if (max / min < 5) return thinned(linearValues(min, max), min, max, room);
  const decades = high - low;
  const stride = Math.max(1, Math.ceil(decades / 20));
  const at: { value: number; weight: number }[] = [];
  for (let power = low; power <= high; power += 1) {
    if (decades > 20 && (power - low) % stride !== 0) continue;
    for (let digit = 1; digit <= (decades > 8 ? 1 : 9); digit++) {
      const value = Number(`${digit}e${power}`);
      if (value >= min && value <= max && Number.isFinite(value) && value > 0)
        at.push({ value, weight: digit === 1 ? 0 : digit === 2 || digit === 5 ? 1 : 2 });
    }
  }
  return thinned(at, min, max, room);
}

function linearValues(min: number, max: number): { value: number; weight: number }[] {
  const { at } = stepTicks(
    min,
    max,
    { pixels: 10 * LINE, horizontal: false },
    decimalSteps((max - min) / MAX_TICKS, false),
    null,
  );
  return at.filter((value) => value > 0).map((value) => ({ value, weight: 0 }));
}

function thinned(at: { value: number; weight: number }[], min: number, max: number, room: Room): Ticks {
  const labels = at.map(() => "");
  const span = Math.log(max / min) || 1;
  const placed: { pixel: number; half: number }[] = [];
  for (const weight of [0, 1, 2]) {
    at.forEach((tick, i) => {
      if (tick.weight !== weight) return;
      const text = logLabel(tick.value);
      const pixel = (Math.log(tick.value / min) / span) * room.pixels;
      const half = labelSize(text, room) / 2;
      if (placed.some((other) => Math.abs(other.pixel - pixel) < other.half + half)) return;
      placed.push({ pixel, half });
      labels[i] = text;
    });
  }
  return { at: at.map((tick) => tick.value), labels };
}

function logLabel(value: number): string {
  if (value >= 1e-3 && value < 1e6) return String(Number(value.toPrecision(12)));
  return Number(value.toPrecision(12)).toExponential().replace("e+", "e");
}
