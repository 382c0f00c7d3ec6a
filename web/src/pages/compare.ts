/** The differences between trials: rows of a table whose values differ, and where their curves differ the most. */

import type { CurveSegment, Experiment, Lineage } from "../api/types";
import { counted } from "../format";

export interface ComparedRow {
  group: string;
  name: string;
  /** One for each trial; undefined where it has none. */
  values: unknown[];
  same: boolean;
}

/** The note below a table with parameters that changed during training. */
export const ARROWS =
  "An arrow leads from the first value of a parameter to its last one: the search changed it during training. The trial's page has all its values.";

/** The lineages with several configurations, by the id of their trial. */
export function lineagesOf(queries: readonly { data?: Lineage | undefined }[]): ReadonlyMap<string, Lineage> {
  return new Map(
    queries.flatMap(({ data }) => (data && data.schedule.length > 1 ? [[data.trial_id, data] as const] : [])),
  );
}

/** Rows of one group, by name in the order in which the names first occur. */
export function rowsOf(group: string, objects: readonly Readonly<Record<string, unknown>>[]): ComparedRow[] {
  const names = [...new Set(objects.flatMap((one) => Object.keys(one)))];
  return names.map((name) => {
    const values = objects.map((one) => one[name]);
    const first = JSON.stringify(values[0] ?? null);
    return { group, name, values, same: values.every((value) => JSON.stringify(value ?? null) === first) };
  });
}

/** The column of the best value in the row of the objective's best values; null for other rows. */
export function bestIn(row: ComparedRow, of: Pick<Experiment, "metric" | "mode" | "scope"> | undefined): number | null {
  if (!of || row.group !== "Results" || row.name !== counted(of)) return null;
  const sign = of.mode === "max" ? 1 : -1;
  let best: number | null = null;
  row.values.forEach((value, i) => {
    if (typeof value === "number" && (best === null || sign * value > sign * (row.values[best] as number))) best = i;
  });
  return best;
}

export interface Gap {
  x: number;
  low: { index: number; value: number };
  high: { index: number; value: number };
}

/** The place on the axis at which at least two curves have a point and lie furthest apart; null if there is none. */
export function widestGap(curves: readonly (readonly CurveSegment[])[]): Gap | null {
  const points = new Map<number, { index: number; value: number }[]>();
  curves.forEach((segments, index) => {
    for (const { x, y } of segments) {
      x.forEach((at, k) => {
        const value = y[k];
        if (value === null || value === undefined) return;
        const here = points.get(at) ?? [];
        points.set(at, [...here.filter((one) => one.index !== index), { index, value }]);
      });
    }
  });
  let found: Gap | null = null;
  for (const [x, here] of points) {
    if (here.length < 2) continue;
    const sorted = [...here].sort((a, b) => a.value - b.value);
    const [low, high] = [sorted[0]!, sorted[sorted.length - 1]!];
    if (!found || high.value - low.value > found.high.value - found.low.value) found = { x, low, high };
  }
  return found;
}

/** "trl_1,trl_2": at most ten, each once. */
export function parseTrials(text: string | null): string[] {
  return parseIds(text, /^trl_\w+$/);
}

/** "exp_1,exp_2": at most ten, each once. */
export function parseExperiments(text: string | null): string[] {
  return parseIds(text, /^exp_\w+$/);
}

function parseIds(text: string | null, form: RegExp): string[] {
  return [...new Set((text ?? "").split(",").filter((one) => form.test(one)))].slice(0, 10);
}
