/** The geometry of a chart of curves: the range of its points, their positions in pixels, and the nearest point. */

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
  /** The points at which a segment begins with another trial's weights. */
  exploits: Takeover[];
}

export interface Takeover {
  /** The index of the segment's first point: 1 for points[2] and points[3]. */
  at: number;
  /** The ordinal of the segment. */
  ordinal: number;
  /** The weights are the trial's own: only its parameters have changed. */
  own?: true;
}

/** Return true if the segment begins with the weights of another trial. */
export function tookOver({ cause, own }: Pick<CurveSegment, "cause" | "own">): boolean {
  return cause === "exploit" && !own;
}

const replayed = new WeakMap<Series, Series>();

/** Mark the exploits of a replayed schedule, in which a trial continues from its own checkpoint. Return the same object for the same curve. */
export function ofReplay(series: Series): Series {
  let found = replayed.get(series);
  if (!found) {
    const segments = series.segments.map((one) => (one.cause === "exploit" ? { ...one, own: true as const } : one));
    replayed.set(series, (found = { ...series, segments }));
  }
  return found;
}

/**
 * Return whether the curve continues from one segment to the next: only if the trial continues from where it was, with
 * its own weights. It breaks at an exploit, because the new weights were not learned from the old ones; at a retry from
 * an earlier checkpoint; and, on the axis of the time of the search, at a pause. On the axis of the trial's own time, it breaks at
 * every retry, because that time continues to grow even if the trial goes back.
 */
function joined(before: CurveSegment, after: CurveSegment, axis: XAxis): boolean {
  if (axis === "time" || tookOver(after) || (axis === "trial_time" && after.cause === "retry")) return false;
  const [last, first] = [before.x[before.x.length - 1], after.x[0]];
  return last !== undefined && first !== undefined && first > last;
}

/** The number of points between this segment of a line and the next: one that lifts the pen, or none. */
function gap(series: Series, k: number, axis: XAxis): number {
  const after = series.segments[k + 1];
  return after && joined(series.segments[k]!, after, axis) ? 0 : 1;
}

/** The pixels of every curve. The pen is lifted at a gap (a NaN) and before a segment that begins elsewhere. */
export function layOut(series: readonly Series[], x: Axis, y: Axis, axis: XAxis): Line[] {
  return series.map((one) => layOutOne(one, x, y, axis));
}

export function layOutOne(one: Series, x: Axis, y: Axis, axis: XAxis): Line {
  const length = one.segments.reduce((n, segment, k) => n + segment.x.length + gap(one, k, axis), 0);
  const points = new Float64Array(2 * length);
  const exploits: Takeover[] = [];
  let i = 0;
  one.segments.forEach((segment, nth) => {
    if (segment.cause === "exploit" && segment.x.length > 0)
      exploits.push({ at: i / 2, ordinal: segment.ordinal, ...(segment.own && { own: true }) });
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
  // A point whose x a log axis cannot show is left out.
  for (let k = 0; k < points.length; k += 2) if (Number.isNaN(points[k]!)) points[k + 1] = NaN;
  return { number: one.number, points, exploits };
}

/** Return whether any part of the line is visible in a plot of this size. */
export function inView({ points }: Line, width: number, height: number): boolean {
  for (let i = 0; i < points.length; i += 2) {
    const [x1, y1] = [points[i]!, points[i + 1]!];
    if (Number.isNaN(y1)) continue;
    if (x1 >= 0 && x1 <= width && y1 >= 0 && y1 <= height) return true;
    if (i === 0 || Number.isNaN(points[i - 1]!)) continue;
    if (crosses(points[i - 2]!, points[i - 1]!, x1, y1, width, height)) return true;
  }
  return false;
}

/** Return whether the line from (x0, y0) to (x1, y1) passes through the box from (0, 0) to (width, height). */
function crosses(x0: number, y0: number, x1: number, y1: number, width: number, height: number): boolean {
  let [from, to] = [0, 1];
  for (const [start, delta, size] of [
    [x0, x1 - x0, width],
    [y0, y1 - y0, height],
  ] as const) {
    if (delta === 0) {
      if (start < 0 || start > size) return false;
      continue;
    }
    const [a, b] = [-start / delta, (size - start) / delta];
    from = Math.max(from, Math.min(a, b));
    to = Math.min(to, Math.max(a, b));
  }
  return from <= to;
}

/** The source of the weights with which a segment begins: the donor, its segment, and the donor's iteration. */
export interface Source {
  trial: number;
  ordinal: number | null;
  iteration: number;
}

/**
 * The index of the donor's point from which the recipient took over: on the step axis the last one up to the iteration of the
 * checkpoint; on others the last one before the recipient's first. Null on the axis of the trials' own times, where the two
 * are unrelated.
 */
export function donorPoint(donor: Series, source: Source, before: number, axis: XAxis): number | null {
  if (axis === "trial_time") return null;
  let offset = 0;
  let found: number | null = null;
  for (const [k, segment] of donor.segments.entries()) {
    if (source.ordinal === null || segment.ordinal <= source.ordinal) {
      for (let i = 0; i < segment.x.length; i++) {
        if (segment.y[i] === null) continue;
        if (axis === "step" ? segment.x[i]! <= source.iteration : segment.x[i]! <= before) found = offset + i;
      }
    }
    offset += segment.x.length + gap(donor, k, axis);
  }
  return found;
}

export interface Hit {
  number: number;
  /** The index of the nearest point of the line: 1 for points[2] and points[3]. */
  at: number;
  distance: number;
}

/** The line that passes nearest to (px, py), within `reach` pixels; later lines win ties, since they are drawn on top. */
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
      // Over a metric, a curve can also run to the left.
      if (px < Math.min(x0, x1) - reach || px > Math.max(x0, x1) + reach) continue;
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
      return {
        x: segment.x[left]!,
        y: segment.y[left] ?? null,
        ordinal: segment.ordinal,
        exploited: left === 0 && tookOver(segment),
        ...(left === 0 && segment.own && { changed: true }),
      };
    }
    left -= segment.x.length + gap(series, k, axis);
    if (left < 0) return null;
  }
  return null;
}

export interface Point {
  x: number;
  y: number | null;
  /** The ordinal of its segment. */
  ordinal: number;
  /** True if it is the first one with the weights of another trial. */
  exploited: boolean;
  /** True if it is the first one after the parameters have changed. */
  changed?: true;
}

export interface Extent {
  x: Range;
  y: Range;
  /** The numbers of points that are left out because they lie below or above the y range. */
  outside: { below: number; above: number };
  /** The beginning of most curves, if it lies outside; else null. */
  late: Late | null;
  /** The range of the points themselves, without room around them. */
  points: { x: Range; y: Range };
}

/** Most curves lie above or below the chart before this place on the horizontal axis. */
export interface Late {
  until: number;
  side: "above" | "below";
}

export interface View {
  log: boolean;
  logX: boolean;
  trim: Mode | "both" | null;
}

/** Outliers are left out only if all other values would otherwise get less than this share of the height. */
const PRESSED = 0.05;

/** How far a population's range extends below the values of the second half, in multiples of the range of these values. */
const EXPLOIT_REACH = 2;
/** The range of the second half is taken from at most this many values. */
const LOOKED_AT = 4000;

/** Return true if trials have taken over each other's weights. */
function hasExploits(series: readonly Series[]): boolean {
  return series.some(({ segments }) => segments.some(tookOver));
}

/**
 * The range of all but the lowest and the highest hundredth of the values right of the middle. The members of a
 * population start far from where they end, and all of them end close to each other: the chart must tell them apart
 * there.
 */
function laterRange(series: readonly Series[], view: View, middle: number): Range | null {
  const found: number[] = [];
  const every = Math.ceil(series.reduce((n, one) => n + boundsOf(one, view).count, 0) / LOOKED_AT);
  for (const one of series) {
    let at = 0;
    each(one, view, (value, x) => {
      if (x >= middle && at++ % every === 0) found.push(value);
    });
  }
  if (found.length === 0) return null;
  const sorted = Float64Array.from(found).sort();
  return { min: quantile(sorted, 0.01), max: quantile(sorted, 0.99) };
}

/**
 * The view that shows all curves; null while there is no point. With `trim`, outliers on the worse side of that mode are left
 * out if they would press all other values into a line, as a few diverged trials do. Which values are outliers depends on the range
 * that whole trials cover: three quarters of them are always shown from their first report to their last. The start of a population is left
 * out if it would press the second half into a line.
 */
export function extent(series: readonly Series[], view: View): Extent | null {
  const { log, logX, trim } = view;
  const bounds = series.map((one) => boundsOf(one, view));
  let [n, minX, maxX, minY, maxY] = [0, Infinity, -Infinity, Infinity, -Infinity];
  for (const one of bounds) {
    n += one.count;
    minX = Math.min(minX, one.minX);
    maxX = Math.max(maxX, one.maxX);
    minY = Math.min(minY, one.minY);
    maxY = Math.max(maxY, one.maxY);
  }
  if (n === 0) return null;
  let [low, high] = [minY, maxY];
  const outside = { below: 0, above: 0 };
  if (trim !== null && !log) {
    const reported = bounds.filter((one) => one.count > 0);
    const bottom = quantile(Float64Array.from(reported, (one) => one.minY).sort(), 0.25);
    const top = quantile(Float64Array.from(reported, (one) => one.maxY).sort(), 0.75);
    const reach = 2 * (top - bottom);
    const from = reach > 0 && trim !== "min" ? bottom - reach : -Infinity;
    const to = reach > 0 && trim !== "max" ? top + reach : Infinity;
    if (Math.min(to, maxY) - Math.max(from, minY) < PRESSED * (maxY - minY)) {
      [low, high] = [Infinity, -Infinity];
      const take = (value: number) => {
        low = Math.min(low, value);
        high = Math.max(high, value);
      };
      series.forEach((one, i) => {
        const own = bounds[i]!;
        if (own.count === 0) return;
        if (own.minY >= from && own.maxY <= to) {
          take(own.minY);
          take(own.maxY);
          return;
        }
        each(one, view, (value) => {
          if (value < from) outside.below++;
          else if (value > to) outside.above++;
          else take(value);
        });
      });
    } else if (hasExploits(series)) {
      const later = laterRange(series, view, (minX + maxX) / 2);
      const size = later ? later.max - later.min : 0;
      if (later && size > 0 && 2 * EXPLOIT_REACH * size < maxY - minY) {
        if (trim !== "min") low = Math.max(minY, later.min - EXPLOIT_REACH * size);
        if (trim !== "max") high = Math.min(maxY, later.max + EXPLOIT_REACH * size);
        for (const one of series)
          each(one, view, (value) => {
            if (value < low) outside.below++;
            else if (value > high) outside.above++;
          });
      }
    }
  }
  const points = { x: { min: minX, max: maxX }, y: { min: low, max: high } };
  const late = outside.below + outside.above > 0 ? beginsLate(series, view, points.y) : null;
  return { x: padded(points.x, logX, 0.01), y: padded(points.y, log, 0.04), outside, late, points };
}

/** Say why logarithmic axes show none of the points; null if they show some, or if there is none. */
export function logWords(series: readonly Series[], log: boolean, logX: boolean): string | null {
  const shows = (log: boolean, logX: boolean) =>
    series.some((one) => boundsOf(one, { log, logX, trim: null }).count > 0);
  if (shows(log, logX) || !shows(false, false)) return null;
  const what = shows(log, false) ? "No place on the horizontal axis" : "No value";
  return `${what} is positive, so the logarithmic axis shows nothing. Choose “linear” instead.`;
}

/** Say how many points logarithmic axes cannot show; null if they show all of them, or none: then `logWords` says so. */
export function leftOutByLog(series: readonly Series[], log: boolean, logX: boolean): string | null {
  const count = (log: boolean, logX: boolean) =>
    series.reduce((n, one) => n + boundsOf(one, { log, logX, trim: null }).count, 0);
  const shown = count(log, logX);
  const left = count(false, false) - shown;
  if (left === 0 || shown === 0) return null;
  return left === 1 ? "1 point at or below 0 is not shown" : `${left} points at or below 0 are not shown`;
}

/** Return where half of the curves have come into the shown range, if that is later than where they begin; else null. */
function beginsLate(series: readonly Series[], view: View, shown: Range): Late | null {
  const begins: number[] = [];
  const enters: number[] = [];
  let above = 0;
  for (const one of series) {
    let [first, entered, start] = [Infinity, Infinity, 0];
    each(one, view, (value, x) => {
      if (x < first) [first, start] = [x, value];
      if (value >= shown.min && value <= shown.max) entered = Math.min(entered, x);
    });
    if (first === Infinity) continue;
    begins.push(first);
    enters.push(entered);
    if (first < entered) above += start > shown.max ? 1 : -1;
  }
  const until = quantile(Float64Array.from(enters).sort(), 0.5);
  if (!Number.isFinite(until) || until <= quantile(Float64Array.from(begins).sort(), 0.5)) return null;
  return { until, side: above > 0 ? "above" : "below" };
}

/** Visit the points of a series that the axes can show. */
function each({ segments }: Series, { log, logX }: View, visit: (value: number, x: number) => void): void {
  for (const { x, y } of segments) {
    for (let k = 0; k < x.length; k++) {
      const value = y[k];
      if (value === null || value === undefined || (log && value <= 0) || (logX && x[k]! <= 0)) continue;
      visit(value, x[k]!);
    }
  }
}

interface Bounds {
  count: number;
  minX: number;
  maxX: number;
  minY: number;
  maxY: number;
}

/** Cached bounds, by log and logX. A series that changes is replaced by another object, so its cached bounds stay valid. */
const known = [0, 1, 2, 3].map(() => new WeakMap<Series, Bounds>());

function boundsOf(series: Series, view: View): Bounds {
  const cache = known[Number(view.log) + 2 * Number(view.logX)]!;
  let found = cache.get(series);
  if (!found) {
    found = { count: 0, minX: Infinity, maxX: -Infinity, minY: Infinity, maxY: -Infinity };
    const bounds = found;
    each(series, view, (value, x) => {
      bounds.count++;
      if (x < bounds.minX) bounds.minX = x;
      if (x > bounds.maxX) bounds.maxX = x;
      if (value < bounds.minY) bounds.minY = value;
      if (value > bounds.maxY) bounds.maxY = value;
    });
    cache.set(series, found);
  }
  return found;
}

/** Return whether `shown` can stay as it is: it holds all points, and is not much longer than a newly chosen range. */
export function holds(shown: Range, chosen: Range, points: Range, log: boolean): boolean {
  const size = ({ min, max }: Range) => (log ? Math.log(max / min) : max - min);
  return shown.min <= points.min && shown.max >= points.max && size(shown) <= 1.25 * size(chosen);
}

/** The smallest part of an axis to which keys zoom. */
const LEAST_PART = 1e-6;

/**
 * Return the part of an axis after a key: `size` times as long, around its middle, and moved by `by` times its length. It stays within
 * the whole axis.
 */
export function partAfter(shown: Range, whole: Range, log: boolean, size: number, by: number): Range {
  if (size === 1 && by === 0) return shown;
  const place = (value: number) => (log ? Math.log(value) : value);
  const [from, to] = [place(whole.min), place(whole.max)];
  const [low, high] = [place(shown.min), place(shown.max)];
  const length = Math.min(to - from, Math.max(LEAST_PART * (to - from), (high - low) * size));
  if (!(length < to - from)) return whole;
  const middle = (low + high) / 2 + by * (high - low);
  const start = Math.min(Math.max(from, middle - length / 2), to - length);
  const [min, max] = [start, start + length];
  return log ? { min: Math.exp(min), max: Math.exp(max) } : { min, max };
}

function padded({ min, max }: Range, log: boolean, share: number): Range {
  if (log) {
    const factor = max === min ? 2 : Math.max(1.02, (max / min) ** share);
    return { min: min / factor, max: max * factor };
  }
  const pad = max === min ? Math.max(Math.abs(max) * 0.05, 0.5) : (max - min) * share;
  return { min: min - pad, max: max + pad };
}

function quantile(sorted: Float64Array, q: number): number {
  return sorted[Math.round(q * (sorted.length - 1))]!;
}
