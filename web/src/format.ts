/** Numbers, times and configurations as people read them. */

import { exactText } from "./api/exact";
import type { Experiment, Params, Trial } from "./api/types";
import { own } from "./own";

/** Four significant digits; powers of ten if the plain form is long. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6))
    return value
      .toExponential(3)
      .replace("e+", "e")
      .replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

/** A reported value, with six digits. The reasons of decisions have as many, and whole numbers in full. */
export function metric(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6))
    return value
      .toExponential(5)
      .replace("e+", "e")
      .replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(6)));
}

/** A number with its noun: "1 trial", "3 trials". */
export function plural(count: number | string, noun: string): string {
  return String(count) === "1" ? `1 ${noun}` : `${count} ${noun}s`;
}

/** The name of the value that counts for a trial: its best one or, if the search's scope is "last", its last one. */
export function counted({ metric, scope }: Pick<Experiment, "metric" | "scope">): string {
  return scope === "last" ? `last ${metric}` : `best ${metric}`;
}

/**
 * Return where a trial reported the value that counts for it, such as " at iteration 7"; "" if that is unknown, or if
 * the trial reported only once.
 */
export function reachedAt({ best_iteration, iteration }: Pick<Trial, "best_iteration" | "iteration">): string {
  return best_iteration === null || iteration <= 1 ? "" : ` at iteration ${best_iteration}`;
}

/** The title for the value of the best trial. */
export function leading({ metric, scope }: Pick<Experiment, "metric" | "scope">): string {
  return scope === "last" ? `Best last ${metric}` : `Best ${metric}`;
}

export function title(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Capitalize the first letter of a text, unless the text begins with a name such as `train.py` or `exp_1`. */
export function sentence(text: string): string {
  return /^[a-z]+[ ,:]/.test(text) ? title(text) : text;
}

/** A blank as wide as a digit. */
const BLANK = "\u2007";
/** A blank as wide as a decimal point. */
const POINT = "\u2008";

/** The number of digits after the point of a reported value; 0 for powers of ten, whose points are not aligned. */
export function decimals(value: number | null | undefined): number {
  const text = metric(value);
  return text.includes("e") || !text.includes(".") ? 0 : text.length - text.indexOf(".") - 1;
}

/**
 * Format a reported value for a column. It has the same digits as elsewhere; blanks at its end align the decimal
 * points. `most`: the maximum number of digits after the point in this column.
 */
export function metricInColumn(value: number | null | undefined, most: number): string {
  const text = metric(value);
  if (value === null || value === undefined || text.includes("e")) return text;
  const own = decimals(value);
  return text + (own === 0 && most > 0 ? POINT : "") + BLANK.repeat(Math.max(0, most - own));
}

/** The value of a parameter: whole numbers such as seeds and dates in full, others with four digits. */
export function param(value: unknown): string {
  if (value === undefined) return "";
  if (typeof value === "number") return Number.isSafeInteger(value) ? String(value) : number(value);
  if (typeof value === "string") return value;
  if (typeof value === "bigint") return String(value);
  return JSON.stringify(value) ?? "";
}

/** A category with all its digits, so that different numbers have different texts. */
export function category(value: unknown): string {
  if (value === undefined) return "";
  return typeof value === "string" ? value : exactText(value);
}

/** The texts of these labels. Different values with the same text, such as 1 and "1", have theirs in parentheses. */
export function distinct(labels: readonly unknown[], values: readonly unknown[] = labels): string[] {
  const texts = labels.map(category);
  const meant = new Map(texts.map((text) => [text, new Set<string>()]));
  texts.forEach((text, i) => meant.get(text)!.add(exactText(values[i])));
  return texts.map((text, i) => (meant.get(text)!.size === 1 ? text : `${text} (${exactText(values[i])})`));
}

/** The labels that the indices of a choice stand for, by the path of the choice. */
export type Labels = Readonly<Record<string, readonly unknown[]>>;

/** A label longer than this describes a whole object. The index is shown in its place, because it says more. */
const LONGEST_BRANCH = 24;

/**
 * Return the name of a parameter, given its path, which escapes slashes within a name as a JSON pointer does. For a
 * parameter in a branch of a choice, the path contains the branch's index, and the name contains its label:
 * "optimizer/adam/beta".
 */
export function paramName(path: string, labels: Labels = {}): string {
  const parts = path.split("/");
  return parts
    .map((part, i) => branchOf(own(labels, parts.slice(0, i).join("/")), part) ?? part)
    .join("/")
    .replaceAll("~1", "/")
    .replaceAll("~0", "~");
}

function branchOf(choice: readonly unknown[] | undefined, index: string): string | undefined {
  const label = choice?.[Number(index)];
  if (typeof label !== "string" || label === "" || label.length > LONGEST_BRANCH) return undefined;
  return choice!.filter((one) => one === label).length === 1 ? label : undefined;
}

/** The field that a JSON pointer of a mistake points to: "space.lr.lower". The path of a parameter is escaped twice in it. */
export function fieldName(pointer: string): string {
  const ofParam = /^\/(configurations\/\d+|params)\/[^/]+$/.test(pointer);
  const names = pointer
    .slice(1)
    .split("/")
    .map((part) => paramName(part));
  return (ofParam ? [...names.slice(0, -1), paramName(names.at(-1)!)] : names).join(".");
}

/** Parameters by their names. */
export function named<T>(params: Readonly<Record<string, T>>, labels: Labels = {}): Record<string, T> {
  return Object.fromEntries(Object.entries(params).map(([path, value]) => [paramName(path, labels), value]));
}

/** Parameters with the indices of choices replaced by what they stand for. */
export function readable(params: Params, labels: Labels): Params {
  const indexed = Object.keys(params).filter((name) => Object.hasOwn(labels, name));
  if (indexed.length === 0) return params;
  return {
    ...params,
    ...Object.fromEntries(indexed.map((name) => [name, labelOf(labels[name]!, params[name])])),
  };
}

/** The label, which may be null, or the value itself if it is not an index. */
function labelOf(labels: readonly unknown[], value: unknown): unknown {
  return typeof value === "number" && value in labels ? labels[value] : value;
}

/** One line, for tooltips and titles. */
export function config(params: Params, labels: Labels = {}): string {
  return Object.entries(params)
    .map(([name, value]) => `${paramName(name, labels)}=${param(value)}`)
    .join(", ");
}

const MOST_APART = 8;

/** Say what sets a trial apart from the best one: the parameters that differ. For the best trial itself, return its configuration. */
export function apart(
  trial: Pick<Trial, "number" | "params">,
  { best, labels }: Pick<Experiment, "best" | "labels">,
): string {
  if (best === null || best.trial_number === trial.number) return config(trial.params, labels);
  const other = readable(best.params, labels);
  const differ = [...new Set([...Object.keys(trial.params), ...Object.keys(other)])].filter(
    (name) => JSON.stringify(own(trial.params, name)) !== JSON.stringify(own(other, name)),
  );
  if (differ.length === 0) return `the same configuration as the best, trial ${best.trial_number}`;
  const say = (value: unknown) => (value === undefined ? "not present" : param(value));
  const words = differ
    .slice(0, MOST_APART)
    .map((name) => `${paramName(name, labels)}=${say(own(trial.params, name))} (best: ${say(own(other, name))})`);
  return [...words, ...(differ.length > MOST_APART ? [`and ${differ.length - MOST_APART} more that differ`] : [])].join(
    ", ",
  );
}

/** "16 ms", "1.3 s", "42 s", "3 min 20 s", "5 h 12 min", "3 d 4 h". */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0995) return `${Math.max(Math.round(1000 * seconds), 1)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ""}`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

/** "3 to 5 min": an interval of time, with its unit once if both ends have the same. */
export function rangeWords({ low, high }: { low: number; high: number }): string {
  const [from, to] = [roughly(low), roughly(high)];
  if (from === to) return `about ${to}`;
  const [amount, unit, more] = from.split(" ");
  return more === undefined && to.split(" ").length === 2 && to.endsWith(` ${unit}`)
    ? `${amount} to ${to}`
    : `${from} to ${to}`;
}

/** A duration that is only expected, as the service writes it: in whole seconds, or from a minute on in whole minutes. */
function roughly(seconds: number): string {
  const step = seconds < 60 ? 1 : 60;
  return duration(step * Math.round(seconds / step)).replace(/[.]0 s$/, " s");
}

/** An amount of training: "27 iterations", "9 × epoch". */
export function trained(amount: string, time_attr: string): string {
  if (time_attr !== "training_iteration") return `${amount} × ${time_attr}`;
  return `${amount} ${amount === "1" ? "iteration" : "iterations"}`;
}

/** The longest training of a trial; null if there is no limit. The experiment's max_t ends a trial, and so does the scheduler's. */
export function longestOf({
  max_t,
  scheduler,
  resolved,
}: Pick<Experiment, "max_t" | "scheduler" | "resolved">): number | null {
  const limits = [max_t, (resolved?.scheduler ?? scheduler)["max_t"]].filter((limit) => typeof limit === "number");
  return limits.length > 0 ? Math.min(...limits) : null;
}

/** Seconds from start to end, or to now if it has not ended. */
export function elapsed(start: string | null, end: string | null, now: number): number | null {
  if (start === null) return null;
  return Math.max(0, ((end === null ? now : Date.parse(end)) - Date.parse(start)) / 1000);
}

type Times = Pick<Experiment, "started_at" | "ended_at" | "paused_s" | "paused_since">;

/** The seconds for which an experiment has run: from its start to its end, or to now, without pauses. */
export function ran({ started_at, ended_at, paused_s, paused_since }: Times, now: number): number | null {
  const whole = elapsed(started_at, ended_at ?? paused_since, now);
  return whole === null ? null : Math.max(0, whole - paused_s);
}

/** The seconds for which an experiment has not run since its start: it was paused, had ended for a while, or had no driver. */
export function pausedFor({ ended_at, paused_s, paused_since }: Times, now: number): number {
  return paused_s + (ended_at === null ? (elapsed(paused_since, null, now) ?? 0) : 0);
}

/** "1 min 20 s", or "1 min 20 s, idle 44 min": a search is idle while it is paused, and from its end until it is continued. */
export function ranWords(times: Times, now: number): string {
  const pauses = pausedFor(times, now);
  return `${duration(ran(times, now))}${pauses >= 1 ? `, idle ${duration(pauses)}` : ""}`;
}

/**
 * Return a function that formats times. The browser needs much longer to make a format than to use it, so it is kept. It is one of UTC
 * that gets local times, since the time zone of the browser can change while the page is open.
 *
 * A time of day in an hour that occurs twice, at the end of summer time, gets its offset from UTC. Otherwise later times would look earlier.
 */
function formatting(options: Intl.DateTimeFormatOptions): (date: Date) => string {
  let format: Intl.DateTimeFormat | undefined;
  return (date) => {
    if (Number.isNaN(date.getTime())) return String(date);
    format ??= new Intl.DateTimeFormat(undefined, { ...options, timeZone: "UTC" });
    const shown = format.format(local(date.getTime()));
    return isRepeated(date.getTime()) && hasTime(options) ? `${shown} ${offset(date)}` : shown;
  };
}

const HOUR = 3_600_000;

function local(time: number): number {
  return time - 60_000 * new Date(time).getTimezoneOffset();
}

/** Return whether a clock on the wall shows this time a second time an hour (or, in a few zones, half an hour) earlier or later. */
function isRepeated(time: number): boolean {
  return [HOUR, -HOUR, HOUR / 2, -HOUR / 2].some((step) => local(time + step) === local(time));
}

function hasTime(options: Intl.DateTimeFormatOptions): boolean {
  return options.timeStyle !== undefined || options.hour !== undefined;
}

/** "UTC+2", "UTC−3:30" */
function offset(date: Date): string {
  const minutes = -date.getTimezoneOffset();
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

const MOMENT = formatting({ dateStyle: "medium", timeStyle: "medium" });
const DATE = formatting({ month: "short", day: "numeric" });
const DATE_AND_YEAR = formatting({ year: "numeric", month: "short", day: "numeric" });
const TIME = formatting({
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23", // with `hour12: false`, it is 24 o'clock at midnight in some locales
});

export function ago(time: string | null, now: number): string {
  if (time === null) return "–";
  const seconds = Math.max(0, (now - Date.parse(time)) / 1000);
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return DATE_AND_YEAR(new Date(time));
}

export function clock(time: string): string {
  return TIME(new Date(time));
}

/** Return the date of a row in a list of clock times; null if it is that of the row before, or today's if there is none. */
export function newDay(time: string, before: string | undefined): string | null {
  const date = new Date(time);
  const now = new Date();
  if (date.toDateString() === (before === undefined ? now : new Date(before)).toDateString()) return null;
  return (date.getFullYear() === now.getFullYear() ? DATE : DATE_AND_YEAR)(date);
}

export function moment(time: string | null): string {
  return time === null ? "–" : MOMENT(new Date(time));
}

export function bytes(size: number): string {
  if (size < 1024) return `${size} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length, Math.floor(Math.log2(size) / 10));
  const amount = size / 1024 ** power;
  // Three digits would round 1023 to 1020.
  const rounded = amount < 1000 ? Number(amount.toPrecision(3)) : Math.round(amount);
  return rounded === 1024 && power < units.length ? `1 ${units[power]}` : `${rounded} ${units[power - 1]}`;
}

/** "mean of 2 runs" */
export function runsOf({ trials }: { trials: readonly number[] }): string {
  return trials.length === 1 ? "1 run" : `mean of ${trials.length} runs`;
}

/** What the line of the best value shows after repeats. */
export const LINE_OF_FIRST_RUNS = "The line shows the best value of a single run, without the repeats.";
