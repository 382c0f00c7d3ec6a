/** The axes of the parallel coordinates: one for each parameter, and the objective last. */

import { asNumber, exactText } from "../api/exact";
import type { Experiment, Trial } from "../api/types";
import { category, counted, distinct, metric as written, number, paramName, type Labels } from "../format";
import type { Brushes, Chosen } from "../pages/address";
import { bare, own } from "../own";

export interface Dimension {
  /** The parameter's name, or "objective:" and the metric. */
  id: string;
  label: string;
  objective: boolean;
  /** The metric whose newest value counts; absent for parameters, and for the first objective, whose best value counts. */
  last?: string;
  /** Null for categories. */
  range: { min: number; max: number; log: boolean } | null;
  /** True if only whole numbers are drawn, so that there are no ticks between them. */
  whole?: boolean;
  categories: readonly string[];
  /** The categories of values with the same text, such as 1 and "1", by their JSON; absent if there are none. */
  names?: ReadonlyMap<string, string>;
  /** True if some trials do not have it, because they chose another branch of the space. Their place is below the axis. */
  optional: boolean;
}

/** A category that stands for "the trial does not have this parameter". */
export const ABSENT = "not present";

/** The width of a letter in an axis's name, in pixels. */
export const LETTER = 7.6;

export function axisName({ label, range }: Dimension): string {
  return range?.log ? `${label} (log)` : label;
}

/** The name, with the middle left out if it is too long: names of one group often differ at both ends. */
export function shortened(name: string, most: number): string {
  if (name.length <= most) return name;
  const tail = Math.floor((most - 1) / 2);
  return `${name.slice(0, most - 1 - tail)}…${name.slice(name.length - tail)}`;
}

export function objectiveId(metric: string): string {
  return `objective:${metric}`;
}

/** The value of a trial on an axis: a number, the name of a category, or ABSENT. */
export function valueOf(trial: Trial, dimension: Dimension): number | string {
  if (dimension.objective) return reached(trial, dimension.last) ?? ABSENT;
  const found = own(trial.params, dimension.id);
  if (found === undefined) return ABSENT;
  const value = dimension.range ? asNumber(found) : found;
  if (dimension.range) return typeof value === "number" ? value : ABSENT;
  return categoryOf(dimension, value);
}

function categoryOf({ names }: Dimension, value: unknown): string {
  return names?.get(exactText(value)) ?? category(value);
}

/** The newest value of a metric or, without a metric, the best value of the first objective; undefined if missing or not finite. */
function reached(trial: Trial, last?: string): number | undefined {
  const value = last === undefined ? trial.best_value : trial.last[last];
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/**
 * The selections with the categories as the axes have them. Links that were copied from earlier versions have numbers of three or four
 * digits in their place, such as "1e-4" for 0.0001, and one name for values with the same text.
 */
export function recognized(brushes: Brushes, dimensions: readonly Dimension[]): Brushes {
  const found = bare(brushes);
  for (const { id, categories, names } of dimensions) {
    const chosen = own(brushes, id);
    if (!chosen || !("of" in chosen)) continue;
    const of = chosen.of.flatMap((label) => {
      if (categories.includes(label) || label.trim() === "") return [label];
      const rounded = categories.filter((one) =>
        [3, 4].some((n) => Number(Number(one).toPrecision(n)) === Number(label)),
      );
      for (const [text, name] of names ?? []) if (name === `${label} (${text})`) rounded.push(name);
      return rounded.length > 0 ? rounded : [label];
    });
    found[id] = { of };
  }
  return found;
}

/** The position of a value on its axis, from 0 at the bottom to 1 at the top; null for a value that is not present. */
export function positionOf(dimension: Dimension, value: number | string): number | null {
  if (value === ABSENT) return null;
  if (dimension.range === null) {
    const at = dimension.categories.indexOf(String(value));
    return at < 0 ? null : (at + 0.5) / dimension.categories.length;
  }
  const { min, max, log } = dimension.range;
  if (typeof value !== "number") return null;
  if (max === min) return 0.5;
  return log ? Math.log(value / min) / Math.log(max / min) : (value - min) / (max - min);
}

/** The value at a position; the inverse of `positionOf` for numbers. */
export function valueAt({ range }: Dimension, position: number): number {
  if (!range) return NaN;
  const { min, max, log } = range;
  if (position <= 0) return min; // exactly: a rounded end would leave out the trial that lies on it
  if (position >= 1) return max;
  return log ? min * (max / min) ** position : min + position * (max - min);
}

/** Return the selection of a brush: the numbers in it, or the categories that it covers; null if there are none. */
export function choose(dimension: Dimension, from: number, to: number): Chosen | null {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  if (dimension.range) return { from: valueAt(dimension, low), to: valueAt(dimension, high) };
  const size = dimension.categories.length;
  const of = dimension.categories.filter((_, i) => (i + 0.8) / size > low && (i + 0.2) / size < high);
  return of.length > 0 ? { of } : null;
}

const STEP = 0.1;

/**
 * Return the selection after an arrow key: up raises its lower end, and down lowers its upper end. With Shift, each moves the other
 * end, so that the selection grows again. Null stands for all.
 */
export function stepped(dimension: Dimension, chosen: Chosen | undefined, up: boolean, shift: boolean): Chosen | null {
  const step = dimension.range ? STEP : 1 / dimension.categories.length;
  let [low, high] = endsOf(dimension, chosen);
  if (up !== shift) low = shift ? low - step : Math.min(low + step, high - step);
  else high = shift ? high + step : Math.max(high - step, low + step);
  return low < 1e-9 && high > 1 - 1e-9 ? null : choose(dimension, Math.max(0, low), Math.min(1, high));
}

function endsOf(dimension: Dimension, chosen: Chosen | undefined): [number, number] {
  if (!chosen) return [0, 1];
  const values = "of" in chosen ? chosen.of : [chosen.from, chosen.to];
  const places = values.flatMap((value) => positionOf(dimension, value) ?? []);
  if (places.length === 0) return [0, 1];
  const half = dimension.range ? 0 : 0.5 / dimension.categories.length;
  return [Math.min(...places) - half, Math.max(...places) + half];
}

export function matches(trial: Trial, dimensions: readonly Dimension[], brushes: Brushes): boolean {
  for (const dimension of dimensions) {
    const chosen = own(brushes, dimension.id);
    if (!chosen) continue;
    const value = valueOf(trial, dimension);
    if (
      "of" in chosen
        ? !chosen.of.includes(String(value))
        : typeof value !== "number" || value < chosen.from || value > chosen.to
    )
      return false;
  }
  return true;
}

/**
 * The selections as conditions for the service. The service compares values of categories, but the axes have labels. So
 * the values are looked up in the trials: `raw` has their parameters as the service sent them. Values that no trial
 * has are looked up in the space.
 */
export function conditionsOf(
  dimensions: readonly Dimension[],
  brushes: Brushes,
  shown: readonly Trial[],
  raw: readonly Trial[],
  { space, labels }: Pick<Experiment, "space" | "labels">,
): string[] {
  return dimensions.flatMap((dimension) => {
    const chosen = own(brushes, dimension.id);
    if (!chosen) return [];
    const column = columnOf(dimension);
    if ("from" in chosen) return [`${column}>=${chosen.from}`, `${column}<=${chosen.to}`];
    const values = new Map<string, Set<unknown>>(chosen.of.map((label) => [label, new Set()]));
    values.get(ABSENT)?.add(null);
    shown.forEach((trial, i) => {
      const value = valueOf(trial, dimension);
      const sent = own(raw[i]?.params ?? {}, dimension.id);
      if (value !== ABSENT && sent !== undefined) values.get(String(value))?.add(sent);
    });
    for (const [label, value] of declared(dimension, space, labels)) {
      const found = values.get(label);
      if (found?.size === 0) found.add(value);
    }
    return [`${column}?=${exactText([...values.values()].flatMap((some) => [...some]))}`];
  });
}

/** Return the categories that the space declares for a parameter: the label of each, and its value in the service. */
function declared(dimension: Dimension, space: Experiment["space"], labels: Labels): [string, unknown][] {
  const named = own(labels, dimension.id);
  if (named) return named.map((label, i) => [categoryOf(dimension, label), i]);
  return (domainOf(space, dimension.id).categories ?? []).map((one) => [categoryOf(dimension, one), one]);
}

/** The service's column with the values of an axis. */
function columnOf({ id, objective, last }: Dimension): string {
  if (!objective) return `params.${id}`;
  return last === undefined ? "best_value" : `last.${last}`;
}

export function chosenWords(dimension: Dimension, chosen: Chosen): string {
  if ("of" in chosen) return chosen.of.join(" or ");
  const say = dimension.objective ? written : number;
  return `${say(Number(chosen.from.toPrecision(4)))} to ${say(Number(chosen.to.toPrecision(4)))}`;
}

/** `order`: parameters in the wanted order. The others follow, in the order of the space. */
export function dimensionsOf(
  trials: readonly Trial[],
  experiment: Pick<Experiment, "metric" | "space"> & Partial<Pick<Experiment, "objectives" | "labels" | "scope">>,
  order: readonly string[] = [],
): Dimension[] {
  const names = new Set<string>(order);
  const seen = new Map<string, unknown[]>();
  for (const trial of trials) {
    for (const [name, value] of Object.entries(trial.params)) {
      names.add(name);
      const values = seen.get(name);
      if (values) values.push(value);
      else seen.set(name, [value]);
    }
  }
  const found: Dimension[] = [];
  for (const name of names) {
    const values = seen.get(name);
    if (!values) continue;
    const dimension = dimensionOf(
      name,
      values,
      domainOf(experiment.space, name),
      values.length < trials.length,
      experiment.labels ?? {},
    );
    if (dimension) found.push(dimension);
  }
  const others = (experiment.objectives ?? []).map(({ metric }) => metric).filter((name) => name !== experiment.metric);
  for (const last of [undefined, ...others]) {
    const objective = objectiveOf(trials, experiment, last);
    if (objective) found.push(objective);
  }
  return found;
}

/**
 * The axis of the objective; undefined if no trial has a value of it. `last`: another objective, whose newest values
 * count, as for the front.
 */
export function objectiveOf(
  trials: readonly Trial[],
  { metric, scope = "all" }: Pick<Experiment, "metric"> & Partial<Pick<Experiment, "scope">>,
  last?: string,
): Dimension | undefined {
  const values = trials.flatMap((trial) => reached(trial, last) ?? []);
  if (values.length === 0) return undefined;
  return {
    id: objectiveId(last ?? metric),
    label: trials.every((trial) => trial.iteration <= 1)
      ? (last ?? metric) // a single report is both the best and the last one
      : counted(last === undefined ? { metric, scope } : { metric: last, scope: "last" }),
    objective: true,
    categories: [],
    optional: values.length < trials.length,
    range: { ...ends(values), log: false },
    ...(last === undefined ? {} : { last }),
  };
}

/**
 * Return an experiment and its trials as if another objective were the first one. The newest values of that objective
 * take the place of the best values.
 */
export function underObjective(
  experiment: Experiment,
  trials: readonly Trial[],
  metric: string | null,
): { experiment: Experiment; trials: readonly Trial[] } {
  const other = experiment.objectives.find((one) => one.metric === metric);
  if (!other || other.metric === experiment.metric) return { experiment, trials };
  return {
    experiment: { ...experiment, ...other, scope: "last" },
    trials: trials.map((trial) => ({
      ...trial,
      best_value: reached(trial, other.metric) ?? null,
      best_iteration: null,
    })),
  };
}

/** Return the trials that failed or were cancelled before they had a value of any of these objectives. */
export function valueless(trials: readonly Trial[], dimensions: readonly Dimension[]): readonly Trial[] {
  const objectives = dimensions.filter((one) => one.objective);
  const gone = (trial: Trial) => trial.state === "failed" || trial.state === "cancelled";
  return trials.filter((trial) => gone(trial) && objectives.every((one) => valueOf(trial, one) === ABSENT));
}

/**
 * Put the axes that `ids` names into its order. The others follow, in their previous order, but stay before the objectives with
 * which `ids` ends.
 */
export function inOrder(dimensions: readonly Dimension[], ids: readonly string[]): readonly Dimension[] {
  const named = ids.flatMap((id) => dimensions.find((one) => one.id === id) ?? []);
  const end = named.findLastIndex((one) => !one.objective) + 1;
  return [...named.slice(0, end), ...dimensions.filter((one) => !named.includes(one)), ...named.slice(end)];
}

function dimensionOf(
  name: string,
  values: readonly unknown[],
  domain: Domain,
  optional: boolean,
  labels: Labels,
): Dimension | null {
  const base = { id: name, label: paramName(name, labels), objective: false, optional };
  const numbers = values
    .map(asNumber)
    .filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  if (numbers.length === values.length && !domain.categories) {
    const range = ends([...numbers, ...domain.bounds]);
    // A constant distinguishes no trials.
    if (range.min === range.max) return null;
    return {
      ...base,
      categories: [],
      range: { ...range, log: range.min > 0 && (domain.log ?? range.max / range.min >= 1000) },
      ...(domain.whole ? { whole: true } : {}),
    };
  }
  const own = [...new Set(values)];
  const all = new Map([...(domain.categories ?? []), ...own].map((value) => [exactText(value), value]));
  const texts = distinct([...all.values()]);
  const names = new Map(
    [...all].flatMap(([key, value], i) => (texts[i] === category(value) ? [] : [[key, texts[i]!]])),
  );
  const written = [...new Set(texts)];
  if (written.length < 2 && !optional) return null;
  // The parameter of a choice between whole sub-spaces is an index: show only the indices that occur.
  const occurring = new Set(own.map((value) => names.get(exactText(value)) ?? category(value)));
  const categories = written.filter((one) => occurring.has(one) || written.length <= 12);
  const allNumbers = categories.every((one) => one !== "" && Number.isFinite(Number(one)));
  return {
    ...base,
    range: null,
    ...(names.size > 0 ? { names } : {}),
    categories: allNumbers ? categories.sort((a, b) => Number(a) - Number(b)) : categories,
  };
}

function ends(values: readonly number[]): { min: number; max: number } {
  let [min, max] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < min) min = value;
    if (value > max) max = value;
  }
  return { min, max };
}

interface Domain {
  /** Only whole numbers are drawn. */
  whole: boolean;
  /** Null if the space does not say. */
  log: boolean | null;
  bounds: number[];
  /** The values of a choice between plain values. */
  categories: unknown[] | null;
}

/** Return true if the space draws a parameter on a log scale, false if on a linear one; undefined if it does not say. */
export function isLog(space: Experiment["space"], name: string): boolean | undefined {
  return domainOf(space, name).log ?? undefined;
}

/** Return the domain of a parameter. The parameter's name is its path in the space; the number in "optimizer/1/lr" is that of a branch. */
function domainOf(space: Experiment["space"], name: string): Domain {
  let here: unknown = own(space, name) ?? space;
  if (here === space) {
    for (const part of name.split("/")) {
      const branches = isObject(here) && here["type"] === "choice" ? here["categories"] : undefined;
      here = Array.isArray(branches) ? branches[Number(part)] : isObject(here) ? own(here, part) : undefined;
    }
  }
  const unknown: Domain = { whole: false, log: null, bounds: [], categories: null };
  if (!isObject(here) || typeof here["type"] !== "string") return unknown;
  const type = here["type"];
  const categories = here["categories"] ?? here["values"];
  if (Array.isArray(categories)) {
    return categories.some((one) => isObject(one)) ? unknown : { ...unknown, categories };
  }
  const bounds = [here["lower"], here["upper"]].map(asNumber).filter((one): one is number => typeof one === "number");
  return { whole: type.endsWith("randint"), log: type.includes("log"), bounds, categories: null };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
