/** Curves smoothed by an exponential moving average, as TensorBoard does it: unbiased at the beginning, and restarted at an exploit. */

import type { Series } from "../api/types";
import { tookOver } from "./geometry";

const known = new Map<number, WeakMap<Series, Series>>();

/** Return the same object for the same curve and weight, so that only curves that have changed are drawn again. */
export function smoothed(series: Series, weight: number): Series {
  if (weight <= 0) return series;
  let cache = known.get(weight);
  if (!cache) {
    known.clear(); // those of other weights are no longer needed
    known.set(weight, (cache = new WeakMap()));
  }
  let found = cache.get(series);
  if (!found) cache.set(series, (found = smooth(series, weight)));
  return found;
}

function smooth(series: Series, weight: number): Series {
  let [average, mass] = [0, 0];
  const segments = series.segments.map((segment) => {
    if (tookOver(segment)) [average, mass] = [0, 0];
    const y = segment.y.map((value) => {
      if (value === null) return null;
      average = weight * average + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return average / mass;
    });
    return { ...segment, y };
  });
  return { ...series, segments };
}
