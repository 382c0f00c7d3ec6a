/** The differences between trials: rows of a table whose values differ, and where their curves differ the most. */

import { asNumber } from "../api/exact";
import type { CurveSegment, Experiment, Lineage, TrialState } from "../api/types";
import { positionOf, type Dimension } from "../charts/dimensions";
import { counted, metric, number, title } from "../format";
import { own } from "../own";

export interface ComparedRow {
  group: string;
  name: string;
  /** One for each trial; undefined where it has none. */
  values: unknown[];
  same: boolean;
  /** How much the values differ, in words. */
  note?: string;
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
    const values = objects.map((one) => own(one, name));
    const first = JSON.stringify(values[0]); // a parameter that is null differs from one that is not present
    return { group, name, values, same: values.every((value) => JSON.stringify(value) === first) };
  });
}

type Judged = Pick<Experiment, "metric" | "mode" | "scope"> & Partial<Pick<Experiment, "objectives">>;

/**
 * If a row has the values of an objective, return the columns with the best value: several if they are equal. Otherwise return
 * none. Trials outside the constraints do not count. `trials`: the trials of the columns.
 */
export function bestIn(
  row: ComparedRow,
  of: readonly (Judged | undefined)[],
  trials: readonly { feasible?: boolean | null }[],
): readonly number[] {
  if (row.group !== "Results") return [];
  const modes = new Set(
    of.flatMap((one) => {
      if (!one) return [];
      const others = (one.objectives ?? []).flatMap(({ metric, mode }) =>
        row.name === `last ${metric}` ? [mode] : [],
      );
      return row.name === counted(one) || row.name === `last ${one.metric}` ? [one.mode] : others;
    }),
  );
  // Experiments with opposite modes do not agree which value is better.
  if (modes.size !== 1) return [];
  const counting = row.values.map((value, i) => (trials[i]?.feasible === false ? null : value));
  return bestOf(counting, [...modes][0]!);
}

/** The indices of the best number among values, several if they are equal; none if there are fewer than two numbers. */
export function bestOf(values: readonly unknown[], mode: "min" | "max"): readonly number[] {
  const numbers = values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  if (numbers.length < 2) return [];
  const best = mode === "max" ? Math.max(...numbers) : Math.min(...numbers);
  return values.flatMap((value, i) => (value === best ? [i] : []));
}

export interface Contender {
  name: string;
  value: number | null;
}

/** Say who has the best value, and by how much it is better than the next one; null if fewer than two have a value. */
export function verdictWords(
  label: string,
  mode: "min" | "max",
  contenders: readonly Contender[],
): { first: string; rest: string } | null {
  const sign = mode === "max" ? -1 : 1;
  const valued = contenders.flatMap(({ name, value }) =>
    value !== null && Number.isFinite(value) ? [{ name, value }] : [],
  );
  valued.sort((a, b) => sign * (a.value - b.value));
  const [best] = valued;
  if (!best || valued.length < 2) return null;
  const equal = valued.filter(({ value }) => value === best.value);
  if (equal.length > 1) {
    return {
      first: opening(listed(equal.map(({ name }) => name))),
      rest: `have the same ${label}, ${metric(best.value)}.`,
    };
  }
  const next = valued[1]!;
  const difference = number(Number(Math.abs(best.value - next.value).toPrecision(3)));
  const order = mode === "max" ? "higher" : "lower";
  return {
    first: opening(best.name),
    rest: `has the ${label} of ${metric(best.value)}. It is ${difference} ${order} than that of ${next.name}, the next one (${metric(next.value)}).`,
  };
}

/** Say which trials did not train to their end, so that their values are from less training; null if all did. */
export function unfinishedTrials(
  trials: readonly { name: string; state: TrialState; iteration: number }[],
): string | null {
  const said = (
    [
      ["failed", "failed"],
      ["cancelled", "cancelled"],
      ["stopped", "stopped early"],
      ["paused", "paused"],
      ["running", "still training"],
      ["pending", "not started"],
    ] as const
  ).flatMap(([state, words]) => {
    const some = trials.filter((one) => one.state === state);
    if (some.length === 0) return [];
    const one = some.length === 1;
    const over = state === "stopped" || state === "cancelled";
    const verb = state === "failed" ? "" : over ? (one ? "was " : "were ") : one ? "is " : "are ";
    const places = `, at ${one ? "iteration" : "iterations"} ${listed(some.map(({ iteration }) => String(iteration)))}`;
    const at = some.every(({ iteration }) => iteration === 0) ? "" : places;
    return [`${listed(some.map(({ name }) => name))} ${verb}${words}${at}`];
  });
  if (said.length === 0) return null;
  const whole = trials.some(({ state }) => state === "completed")
    ? " than those of the trials that trained to their end"
    : " than a whole run";
  const count = trials.filter(({ state }) => state !== "completed").length;
  const values = count === 1 ? "Its value is" : "Their values are";
  return `${opening(said.join("; "))}. ${values} from less training${whole}.`;
}

/** The names of trials begin with a capital letter at the beginning of a sentence, but those of experiments do not. */
function opening(text: string): string {
  return text.startsWith("trial ") ? title(text) : text;
}

/** "a", "a and b", "a, b and c" */
function listed(names: readonly string[]): string {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]!}`;
}

/** Say how much a parameter differs between trials, as a share of its range; null if it is not a number, or if the values are equal. */
export function spreadOf(values: readonly unknown[], dimension: Dimension | undefined): number | null {
  if (!dimension?.range) return null;
  const places = values.map(asNumber).flatMap((value) => {
    const place = typeof value === "number" ? positionOf(dimension, value) : null;
    return place === null ? [] : [place];
  });
  return places.length < 2 ? null : Math.max(...places) - Math.min(...places);
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

/** The maximum number of trials or experiments that are compared: each has a color of its own. */
export const MOST_COMPARED = 10;

/** "trl_1,trl_2": each once. */
export function trialsIn(text: string | null): string[] {
  return idsIn(text, /^trl_\w+$/);
}

/** "exp_1,exp_2": each once. */
export function experimentsIn(text: string | null): string[] {
  return idsIn(text, /^exp_\w+$/);
}

/** The trials that are compared. */
export function parseTrials(text: string | null): string[] {
  return trialsIn(text).slice(0, MOST_COMPARED);
}

/** The experiments that are compared. */
export function parseExperiments(text: string | null): string[] {
  return experimentsIn(text).slice(0, MOST_COMPARED);
}

/** Say that not all of these are compared; null if they are. */
export function beyondWords(what: "trials" | "experiments", asked: number): string | null {
  if (asked <= MOST_COMPARED) return null;
  return `These are the first ${MOST_COMPARED} of ${asked} ${what}. If you leave one out, the next one takes its place.`;
}

function idsIn(text: string | null, form: RegExp): string[] {
  return [...new Set((text ?? "").split(",").filter((one) => form.test(one)))];
}
