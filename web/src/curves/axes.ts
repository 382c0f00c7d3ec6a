/** The axis options that every chart passes to uPlot. */

import "uplot/dist/uPlot.min.css";
import uPlot from "uplot";
import { ticks, type Scale } from "./ticks";

export const LOG = { distr: 3 as const, log: 10 as const };

/** The range as it was set; uPlot would widen one of a log scale to whole powers of ten. */
export function asAsked(_: uPlot, min: number | null, max: number | null): [number | null, number | null] {
  return [min, max];
}

/** Our ticks instead of uPlot's. */
export function ownTicks(
  scale: Scale,
  horizontal: boolean,
): Pick<uPlot.Axis, "incrs" | "space" | "splits" | "values" | "filter"> {
  // While uPlot changes its size, its elements still have the old one.
  const found = (u: uPlot, min: number, max: number) =>
    ticks(scale, min, max, {
      pixels: (horizontal ? u.bbox.width : u.bbox.height) / uPlot.pxRatio || (horizontal ? u.width : u.height),
      horizontal,
    });
  return {
    incrs: (_u, _axis, min, max) => [Math.max(5, max - min)], // any value that fits: without one uPlot shows no axis, though `splits` ignores it
    space: 1,
    splits: (u, _axis, min, max) => found(u, min, max).at,
    filter: (_u, splits) => splits,
    values: (u, splits, axis) => {
      const { min, max } = u.scales[axis === 0 ? "x" : "y"]!;
      const { at, labels } = found(u, min!, max!);
      return splits.map((value) => labels[at.indexOf(value)] ?? "");
    },
  };
}

/** Says for screen readers which keys zoom. */
export const ZOOM_KEYS =
  "Plus zooms in, minus zooms out, 0 shows everything, and Shift with an arrow key moves the part that is shown.";
