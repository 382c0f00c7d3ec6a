/** The Pareto front: a trial is on it if no other trial is at least as good in every objective and better in one. */

import type { Experiment, Trial } from "../api/types";

type Objective = Experiment["objectives"][number];

export interface Point {
  number: number;
  /** One for each objective, as reported. */
  values: number[];
}

/** Trials within the constraints whose last report has every objective. */
export function pointsOf(trials: readonly Trial[], objectives: readonly Objective[]): Point[] {
  const found: Point[] = [];
  for (const trial of trials) {
    const values = objectives.map(({ metric }) => trial.last[metric]);
    if (trial.feasible !== false && values.every((value) => typeof value === "number" && Number.isFinite(value)))
      found.push({ number: trial.number, values: values as number[] });
  }
  return found;
}

/** The numbers of the trials that no other one dominates. */
export function frontOf(points: readonly Point[], objectives: readonly Objective[]): Set<number> {
  const signs = objectives.map(({ mode }) => (mode === "max" ? -1 : 1));
  const scored = points.map(({ number, values }) => ({ number, scores: values.map((value, i) => signs[i]! * value) }));
  // Sort by the first objective, so that a point can be dominated only by points before it.
  scored.sort((a, b) => compare(a.scores, b.scores));
  const front: typeof scored = [];
  for (const one of scored) {
    if (!front.some((other) => dominates(other.scores, one.scores))) front.push(one);
  }
  return new Set(front.map((one) => one.number));
}

function compare(a: readonly number[], b: readonly number[]): number {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i]! - b[i]!;
  return 0;
}

function dominates(a: readonly number[], b: readonly number[]): boolean {
  let better = false;
  for (let i = 0; i < a.length; i++) {
    if (a[i]! > b[i]!) return false;
    if (a[i]! < b[i]!) better = true;
  }
  return better;
}

/** The corners of the front of two objectives as a staircase, from one end to the other; empty for fewer than two points. */
export function staircase(
  front: readonly (readonly [number, number])[],
  modes: readonly ["min" | "max", "min" | "max"],
): [number, number][] {
  const sign = modes[0] === "max" ? -1 : 1;
  const sorted = [...front].sort((a, b) => sign * (a[0] - b[0]));
  const corners: [number, number][] = [];
  sorted.forEach(([x, y], i) => {
    // Between two points, the front keeps the y of the previous one up to the x of this one.
    if (i > 0) corners.push([x, sorted[i - 1]![1]]);
    corners.push([x, y]);
  });
  return sorted.length < 2 ? [] : corners;
}

/**
 * The hypervolume as a share of the box between the worst and the best value of each objective: the part of the box
 * that the points dominate. The reference is the corner of the worst values. 0 for no points.
 */
export function hypervolume(points: readonly (readonly number[])[]): number {
  const front = nondominated(points);
  const dimensions = front[0]?.length ?? 0;
  if (dimensions === 0) return 0;
  if (dimensions === 1) return Math.max(...front.map(([x]) => x!));
  // Slices along the last axis, from its best value down; each is covered by the points that reach it.
  const last = dimensions - 1;
  const sorted = [...front].sort((a, b) => b[last]! - a[last]!);
  let volume = 0;
  sorted.forEach((point, i) => {
    const height = point[last]! - (sorted[i + 1]?.[last] ?? 0);
    if (height > 0) volume += height * hypervolume(sorted.slice(0, i + 1).map((one) => one.slice(0, last)));
  });
  return volume;
}

function nondominated(points: readonly (readonly number[])[]): (readonly number[])[] {
  const sorted = [...points].sort((a, b) => compare(b, a));
  const front: (readonly number[])[] = [];
  for (const one of sorted) if (!front.some((other) => other.every((value, i) => value >= one[i]!))) front.push(one);
  return front;
}

/**
 * Return how the front grew: the hypervolume after each ended trial that increased it, as [seconds, share]. `secondsOf`
 * returns how long the search had run at a given time. The box is that of all points, so the shares of a running search
 * can change when it finds worse or better extremes.
 */
export function hypervolumeOverTime(
  points: readonly Point[],
  objectives: readonly Objective[],
  trials: ReadonlyMap<number, Trial>,
  secondsOf: (time: string) => number,
): [number, number][] {
  const ends = objectives.map((_, i) => {
    const values = points.map((one) => one.values[i]!);
    return { min: Math.min(...values), max: Math.max(...values) };
  });
  const ended = points.flatMap(({ number, values }) => {
    const end = trials.get(number)?.ended_at;
    if (!end) return [];
    const good = values.map((value, i) => {
      const { min, max } = ends[i]!;
      const share = max > min ? (value - min) / (max - min) : 1;
      return objectives[i]!.mode === "max" || max === min ? share : 1 - share;
    });
    return [{ at: secondsOf(end), good }];
  });
  ended.sort((a, b) => a.at - b.at);
  const found: [number, number][] = [];
  let front: (readonly number[])[] = [];
  for (const { at, good } of ended) {
    if (front.some((other) => other.every((value, i) => value >= good[i]!))) continue;
    front = nondominated([...front, good]);
    const share = hypervolume(front);
    if (share > (found[found.length - 1]?.[1] ?? 0)) found.push([at, share]);
  }
  return found;
}
