/** What a chart of curves needs to know of its points: how far they reach, where they lie in pixels, which is nearest. */

import type { CurveSegment, Mode, Series, XAxis } from "../api/types";

export interface Range {
  min: number;
  max: number;
}

/** Linear or logarithmic map from values to pixels. */
export interface Axis {
  range: Range;
  log: boolean;
  /** Pixel of range.min and of range.max. */
  from: number;
  to: number;
}

export function pixel(axis: Axis, value: number): number {
  const { min, max } = axis.range;
  if (!axis.log) return axis.from + ((value - min) / (max - min)) * (axis.to - axis.from);
  if (value <= 0) return NaN;
  return axis.from + (Math.log(value / min) / Math.log(max / min)) * (axis.to - axis.from);
}

/** A trial's curve, as pixels [x0, y0, x1, y1, ...]; NaN lifts the pen. */
export interface Line {
  number: number;
  points: Float64Array;
  /** Indexes, in pairs, of the first points after an exploit. */
  exploits: number[];
  /** Of the last point before and the first after an exploit that leads back, as the donor was not as far. */
  jumps: [number, number][];
}

/**
 * Whether the curve goes on from one segment to the next: where the trial goes on from where it was, with its own weights or with
 * another one's. Not back, as after a retry from an earlier checkpoint; and on the time axis not over a pause, in which nothing
 * happened.
 */
function joined(before: CurveSegment, after: CurveSegment, axis: XAxis): boolean {
  const [last, first] = [before.x[before.x.length - 1], after.x[0]];
  return (axis === "step" || after.cause === "exploit") && last !== undefined && first !== undefined && first > last;
}

/** How many points of a line stand between those of this segment and of the next: one that lifts the pen, or none. */
function gap(series: Series, k: number, axis: XAxis): number {
  const after = series.segments[k + 1];
  return after && joined(series.segments[k]!, after, axis) ? 0 : 1;
}

/** Where every curve lies; a gap (a NaN) and a step to a segment that does not go on lift the pen. */
export function layOut(series: readonly Series[], x: Axis, y: Axis, axis: XAxis): Line[] {
  return series.map((one) => {
    const length = one.segments.reduce((n, segment, k) => n + segment.x.length + gap(one, k, axis), 0);
    const points = new Float64Array(2 * length);
    const exploits: number[] = [];
    const jumps: [number, number][] = [];
    let i = 0;
    one.segments.forEach((segment, nth) => {
      if (segment.cause === "exploit" && segment.x.length > 0) {
        if (nth > 0 && gap(one, nth - 1, axis)) jumps.push([i / 2 - 2, i / 2]);
        exploits.push(i / 2);
      }
      for (let k = 0; k < segment.x.length; k++) {
        const value = segment.y[k];
        points[i++] = pixel(x, segment.x[k]!);
        points[i++] = value === null || value === undefined ? NaN : pixel(y, value);
      }
      if (gap(one, nth, axis)) {
        points[i++] = NaN;
        points[i++] = NaN;
      }
    });
    return { number: one.number, points, exploits, jumps };
  });
}

export interface Hit {
  number: number;
  /** Index of the nearest point in the line's points, in pairs. */
  at: number;
  distance: number;
}

/** The line that passes nearest to (px, py), not farther than `reach` pixels; later lines win ties as they are drawn on top. */
export function nearest(lines: readonly Line[], px: number, py: number, reach: number): Hit | null {
  let best = reach * reach;
  let hit: Hit | null = null;
  for (const { number, points } of lines) {
    for (let i = 0; i < points.length; i += 2) {
      const x1 = points[i]!;
      const y1 = points[i + 1]!;
      if (Number.isNaN(y1)) continue;
      const joined = i > 0 && !Number.isNaN(points[i - 1]!);
      const x0 = joined ? points[i - 2]! : x1;
      const y0 = joined ? points[i - 1]! : y1;
      if (px < x0 - reach || px > x1 + reach) continue;
      const dx = x1 - x0;
      const dy = y1 - y0;
      const square = dx * dx + dy * dy;
      const t = square === 0 ? 1 : Math.min(1, Math.max(0, ((px - x0) * dx + (py - y0) * dy) / square));
      const ex = px - (x0 + t * dx);
      const ey = py - (y0 + t * dy);
      const distance = ex * ex + ey * ey;
      if (distance <= best) {
        best = distance;
        hit = { number, at: joined && t < 0.5 ? i / 2 - 1 : i / 2, distance: Math.sqrt(distance) };
      }
    }
  }
  return hit;
}

/** The point of a series that `layOut` put at this index, with the segment it belongs to. */
export function pointAt(series: Series, at: number, axis: XAxis): Point | null {
  let left = at;
  for (const [k, segment] of series.segments.entries()) {
    if (left < segment.x.length) {
      return { x: segment.x[left]!, y: segment.y[left] ?? null, ordinal: segment.ordinal, exploited: left === 0 && segment.cause === "exploit" };
    }
    left -= segment.x.length + gap(series, k, axis);
    if (left < 0) return null;
  }
  return null;
}

export interface Point {
  x: number;
  y: number | null;
  /** Of its segment. */
  ordinal: number;
  /** Whether it is the first one after an exploit. */
  exploited: boolean;
}

export interface Extent {
  x: Range;
  y: Range;
  /** Points that lie outside of the y range. */
  outside: number;
}

/**
 * The view that shows all curves; null while there is no point. With `trim`, values far off on the worse side of that mode (more
 * than four interquartile ranges from the middle half) stay outside, since a few diverged ones would press all others into one line.
 */
export function extent(series: readonly Series[], { log, trim }: { log: boolean; trim: Mode | "both" | null }): Extent | null {
  const count = series.reduce((n, one) => one.segments.reduce((m, segment) => m + segment.x.length, n), 0);
  const all = new Float64Array(count);
  let n = 0;
  let minX = Infinity;
  let maxX = -Infinity;
  for (const one of series) {
    for (const segment of one.segments) {
      for (let k = 0; k < segment.x.length; k++) {
        const value = segment.y[k];
        if (value === null || value === undefined || (log && value <= 0)) continue;
        minX = Math.min(minX, segment.x[k]!);
        maxX = Math.max(maxX, segment.x[k]!);
        all[n++] = value;
      }
    }
  }
  if (n === 0) return null;
  const values = all.subarray(0, n).sort();
  let first = 0;
  let end = n;
  if (trim !== null && !log) {
    const q1 = quantile(values, 0.25);
    const q3 = quantile(values, 0.75);
    const reach = 4 * (q3 - q1);
    if (reach > 0 && trim !== "min") first = firstAtLeast(values, q1 - reach);
    if (reach > 0 && trim !== "max") end = firstAtLeast(values, q3 + reach);
  }
  // Not for a little: only where it makes what is left at least twice as high.
  if (2 * (values[end - 1]! - values[first]!) > values[n - 1]! - values[0]!) [first, end] = [0, n];
  const y = { min: values[first]!, max: values[end - 1]! };
  return { x: padded({ min: minX, max: maxX }, false, 0.01), y: padded(y, log, 0.04), outside: first + n - end };
}

function padded({ min, max }: Range, log: boolean, share: number): Range {
  if (log) {
    const factor = Math.max(1.02, (max / min) ** share);
    return { min: min / factor, max: max * factor };
  }
  const pad = max === min ? Math.max(Math.abs(max) * 0.05, 0.5) : (max - min) * share;
  return { min: min - pad, max: max + pad };
}

function quantile(sorted: Float64Array, q: number): number {
  return sorted[Math.round(q * (sorted.length - 1))]!;
}

function firstAtLeast(sorted: Float64Array, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
