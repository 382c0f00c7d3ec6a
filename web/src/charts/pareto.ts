/** The Pareto front: the trials that no other one equals in every objective and beats in one. */

import type { Experiment, Trial } from "../api/types";

type Objective = Experiment["objectives"][number];

export interface Point {
  number: number;
  /** One for each objective, as reported. */
  values: number[];
}

/** Trials whose last report has every objective. */
export function pointsOf(trials: readonly Trial[], objectives: readonly Objective[]): Point[] {
  const found: Point[] = [];
  for (const trial of trials) {
    const values = objectives.map(({ metric }) => trial.last[metric]);
    if (values.every((value) => typeof value === "number" && Number.isFinite(value)))
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

/** The corners of the front of two objectives as a staircase, from one end to the other; empty for less than two points. */
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
