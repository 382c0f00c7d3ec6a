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

/**
 * Return the front of each point, by trial number: 1 for the Pareto front, 2 for the Pareto front of the points that are left
 * without it, and so on.
 */
export function frontsOf(points: readonly Point[], objectives: readonly Objective[]): Map<number, number> {
  const signs = objectives.map(({ mode }) => (mode === "max" ? -1 : 1));
  const scored = points.map(({ number, values }) => ({ number, scores: values.map((value, i) => signs[i]! * value) }));
  // Sort by the first objective, so that a point can be dominated only by points before it.
  scored.sort((a, b) => compare(a.scores, b.scores));
  const fronts: (readonly number[])[][] = [];
  const found = new Map<number, number>();
  for (const { number, scores } of scored) {
    let at = fronts.findIndex((front) => !front.some((other) => dominates(other, scores)));
    if (at === -1) at = fronts.push([]) - 1;
    fronts[at]!.push(scores);
    found.set(number, at + 1);
  }
  return found;
}

/** Return the numbers of the trials on the Pareto front. */
export function firstOf(fronts: ReadonlyMap<number, number>): Set<number> {
  return new Set([...fronts].flatMap(([number, front]) => (front === 1 ? [number] : [])));
}

/** Return the 1-based rank of each trial by its front. The trials of a front share a rank. */
export function ranksByFront(fronts: ReadonlyMap<number, number>): Map<number, number> {
  const sizes: number[] = [];
  for (const front of fronts.values()) sizes[front] = (sizes[front] ?? 0) + 1;
  const first: number[] = [];
  sizes.forEach((size, front) => (first[front + 1] = (first[front] ?? 1) + size));
  return new Map([...fronts].map(([number, front]) => [number, first[front] ?? 1]));
}

/** A title for the number that is called hypervolume. */
export const HYPERVOLUME =
  "The part of the box from the worst to the best value of each objective that the Pareto front dominates. It would be 1 if one trial were the best in every objective. Only trials that have ended count.";

/** The explanation of ranks that come from fronts. */
export const BY_FRONT =
  "Front 1 is the Pareto front: no other trial is at least as good in every objective and better in one. Front 2 is the Pareto front of the trials that are left without it, and so on. The trials of a front have the same rank and the same color.";

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
