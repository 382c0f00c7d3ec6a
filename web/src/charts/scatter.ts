/** Trials as points of a plane, each axis one of their parameters, their number, or the objective. */

import type { Trial } from "../api/types";
import { ticks } from "../curves/ticks";
import { positionOf, shortened, valueOf, type Dimension } from "./dimensions";

/** The position of a trial on each axis, from 0 to 1; null on an axis for which it has no value. */
export interface Dot {
  number: number;
  x: number | null;
  y: number | null;
  /** False for a trial that was stopped early or is still training: its value is that of fewer iterations. */
  finished: boolean;
  /** False for a trial whose result violates the constraints. */
  feasible: boolean;
}

/** Return true if a trial has trained to its end, so that its value can be compared with those of others that have. */
export function isFinished(trial: Pick<Trial, "state">): boolean {
  return trial.state === "completed";
}

export type Value = (trial: Trial) => number | string;

/** Return the points of trials that have a value on the vertical axis. */
export function dotsOf(
  trials: readonly Trial[],
  across: Dimension,
  up: Dimension,
  valueAcross: Value = (trial) => valueOf(trial, across),
): Dot[] {
  return trials.flatMap((trial) => {
    const y = positionOf(up, valueOf(trial, up));
    if (y === null && up.objective) return [];
    const [finished, feasible] = [isFinished(trial), trial.feasible !== false];
    return [{ number: trial.number, x: positionOf(across, valueAcross(trial)), y, finished, feasible }];
  });
}

/** An axis of numbers that are not a parameter, such as trial numbers. */
export function countAxis(label: string, min: number, max: number): Dimension {
  const range = { min, max: Math.max(max, min + 1), log: false };
  return { id: label, label, objective: false, range, whole: true, categories: [], optional: false };
}

/** The labels of an axis and their positions from 0 to 1. */
export function marksOf(dimension: Dimension, pixels: number, horizontal = false): { at: number; label: string }[] {
  if (!dimension.range) {
    const count = dimension.categories.length;
    return dimension.categories.map((label, i) => ({ at: (i + 0.5) / count, label }));
  }
  const { min, max, log } = dimension.range;
  const { whole = false } = dimension;
  const found = ticks(log ? "log" : whole ? "count" : "linear", min, max, { pixels, horizontal });
  return found.at.flatMap((value, i) => {
    if (whole && !Number.isInteger(value)) return [];
    const at = positionOf(dimension, value);
    return found.labels[i] && at !== null && at >= 0 && at <= 1 ? [{ at, label: found.labels[i] }] : [];
  });
}

/** The width of a letter of an axis in pixels, and the space between two labels. */
const [MARK_LETTER, MARK_GAP] = [6.6, 6];
/** A label has at least this many letters. If there is no room for them, some labels are left out. */
const LEAST_LETTERS = 5;

/** The labels of categories whose places are `step` pixels apart, cut to that room. Null for those that there is no room for. */
export function fittingLabels(labels: readonly string[], step: number): (string | null)[] {
  const most = Math.max(LEAST_LETTERS, Math.floor((step - MARK_GAP) / MARK_LETTER));
  const cut = labels.map((label) => shortened(label, most));
  const widest = Math.max(...cut.map((text) => text.length)) * MARK_LETTER + MARK_GAP;
  const every = Math.max(1, Math.ceil(widest / step));
  return cut.map((text, i) => (i % every === 0 ? text : null));
}

/** The best value after each trial within the constraints, in the order of their numbers: a point for each improvement. */
export function bestByNumber(trials: readonly Trial[], mode: "min" | "max"): [number, number][] {
  const steps: [number, number][] = [];
  for (const { number, best_value: value, feasible } of [...trials].sort((a, b) => a.number - b.number)) {
    if (feasible === false || value === null || !Number.isFinite(value)) continue;
    const best = steps[steps.length - 1]?.[1];
    if (best === undefined || (mode === "max" ? value > best : value < best)) steps.push([number, value]);
  }
  return steps;
}

/** Estimated shares on a grid, row by row from the bottom; null in a cell that no trial is near to. */
export interface Heat {
  columns: number;
  rows: number;
  shares: (number | null)[];
  /** The share of each cell's weight, from 0 to 1, that comes from finished trials. */
  sure: number[];
}

export interface Grid {
  columns: number;
  rows: number;
  /** The number of categories of an axis; null for numbers. Trials of another category do not affect a cell. */
  categoriesAcross: number | null;
  categoriesUp: number | null;
}

const WIDTH = 0.09;
/** A cell stays empty if its weight is less than that of one trial about two and a half widths away. */
const LEAST = 0.05;

/**
 * Return the mean of nearby trials at each cell of a grid, weighted by a Gaussian of their distance. `shareOf` is a trial's place
 * from 0 for the worst to 1 for the best. Trials that lack one of the two parameters are left out.
 */
export function heatOf(dots: readonly Dot[], shareOf: (number: number) => number, grid: Grid): Heat {
  const { columns, rows, categoriesAcross, categoriesUp } = grid;
  // Within a category positions mean nothing, and another category is infinitely far.
  const apart = (a: number, b: number, categories: number | null) =>
    categories === null ? a - b : Math.floor(a * categories) === Math.floor(b * categories) ? 0 : Infinity;
  const known = dots.flatMap(({ number, x, y, finished }) =>
    x === null || y === null ? [] : [{ x, y, finished, share: shareOf(number) }],
  );
  const shares: (number | null)[] = [];
  const sure: number[] = [];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const [cx, cy] = [(column + 0.5) / columns, (row + 0.5) / rows];
      let [sum, weights, ended] = [0, 0, 0];
      for (const { x, y, finished, share } of known) {
        const [dx, dy] = [apart(x, cx, categoriesAcross), apart(y, cy, categoriesUp)];
        const weight = Math.exp(-(dx * dx + dy * dy) / (2 * WIDTH * WIDTH));
        sum += weight * share;
        weights += weight;
        if (finished) ended += weight;
      }
      shares.push(weights < LEAST ? null : sum / weights);
      sure.push(weights > 0 ? ended / weights : 0);
    }
  }
  return { columns, rows, shares, sure };
}

/** Return true if trials report once, as functions that return one value do: a curve of one point shows nothing. */
export function isSingle(trials: readonly Trial[]): boolean {
  return trials.some((one) => one.state === "completed") && trials.every((one) => one.iteration <= 1);
}
