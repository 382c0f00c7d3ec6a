/** The selections of a page, as its URL contains them, so that a link shows the same to others. */

import type { Range } from "../curves/geometry";
import type { Zoom } from "../curves/plot";
import type { Sort } from "../parts/table/trialColumns";
import { bare } from "../own";

/** "0.5,27,0.1,0.97": from and to of the horizontal axis, then of the vertical one. Null if the text is anything else. */
export function parseZoom(text: string | null): Zoom | null {
  const parts = (text ?? "").split(",");
  const [x0, x1, y0, y1] = parts.map(Number) as [number, number, number, number];
  if (parts.length !== 4 || parts.includes("") || ![x0, x1, y0, y1].every(Number.isFinite) || x1 <= x0 || y1 <= y0)
    return null;
  return { x: { min: x0, max: x1 }, y: { min: y0, max: y1 } };
}

/** Format the zoom with as many digits as tell its two ends apart on any screen. */
export function formatZoom({ x, y }: Zoom): string {
  const ends = ({ min, max }: Range) => {
    const digits = Math.min(
      15,
      Math.max(4, 4 + Math.ceil(Math.log10(Math.max(Math.abs(min), Math.abs(max)) / (max - min)))),
    );
    return [min, max].map((value) => Number(value.toPrecision(digits)));
  };
  return [...ends(x), ...ends(y)].join(",");
}

/** "lr" is ascending, "-lr" descending; the columns of parameters are "param:lr". */
export function parseSort(text: string | null, fallback: Sort): Sort {
  if (!text || text === "-") return fallback;
  return text.startsWith("-") ? { column: text.slice(1), descending: true } : { column: text, descending: false };
}

export function formatSort(sort: Sort, fallback: Sort): string | null {
  if (sort.column === fallback.column && sort.descending === fallback.descending) return null;
  return `${sort.descending ? "-" : ""}${sort.column}`;
}

/** The selection on one axis of the parallel coordinates: a range of numbers, or some of the categories. */
export type Chosen = { from: number; to: number } | { of: string[] };
export type Brushes = Readonly<Record<string, Chosen>>;

/** The members of an object in JSON. There are none if the text is anything else. */
function membersOf(text: string | null): [string, unknown][] {
  try {
    const data: unknown = JSON.parse(text ?? "{}");
    return data !== null && typeof data === "object" && !Array.isArray(data) ? Object.entries(data) : [];
  } catch {
    return [];
  }
}

/** JSON: {"lr": [0.001, 0.01], "width": ["16", "32"]}. What is not understood is left out. */
export function parseBrushes(text: string | null): Brushes {
  const found = bare<Chosen>();
  for (const [name, value] of membersOf(text)) {
    if (!Array.isArray(value) || value.length === 0) continue;
    const [from, to] = value as unknown[];
    if (value.length === 2 && typeof from === "number" && typeof to === "number")
      found[name] = { from: Math.min(from, to), to: Math.max(from, to) };
    else if (value.every((one) => typeof one === "string")) found[name] = { of: value };
  }
  return found;
}

/** Format the selections. Their numbers keep all digits, since a trial may lie exactly on an end. */
export function formatBrushes(brushes: Brushes): string | null {
  const entries = Object.entries(brushes);
  if (entries.length === 0) return null;
  return JSON.stringify(
    Object.fromEntries(entries.map(([name, chosen]) => [name, "of" in chosen ? chosen.of : [chosen.from, chosen.to]])),
  );
}

/** The text of the selections after that of one axis was changed; null removes it. */
export function withBrush(text: string | null, axis: string, chosen: Chosen | null): string | null {
  const { [axis]: _, ...others } = parseBrushes(text);
  return formatBrushes(chosen ? { ...others, [axis]: chosen } : others);
}

/** "3,17,4": numbers of trials, in the order in which they were picked. */
export function parseNumbers(text: string | null): number[] {
  const found = (text ?? "").split(",").filter((one) => /^\d{1,9}$/.test(one));
  return [...new Set(found.map(Number))];
}

/** Names as JSON, as they may hold commas. Anything else counts as empty. */
export function parseList(text: string | null): string[] {
  try {
    const data: unknown = JSON.parse(text ?? "[]");
    return Array.isArray(data) ? data.filter((one): one is string => typeof one === "string") : [];
  } catch {
    return [];
  }
}

export function formatList(names: readonly string[]): string | null {
  return names.length > 0 ? JSON.stringify(names) : null;
}

/** The options of a small chart of the open trial. The zoom belongs to the horizontal axis `x`. */
export interface ChartView {
  log: boolean;
  zoom: Zoom | null;
  x: string;
}

/** JSON, by metric: {"loss": ["log"], "accuracy": ["", "step", "1,20,0.5,0.9"]}. What is not understood is left out. */
export function parseCharts(text: string | null): Readonly<Record<string, ChartView>> {
  const found = bare<ChartView>();
  for (const [metric, value] of membersOf(text)) {
    if (!Array.isArray(value) || !value.every((one) => typeof one === "string")) continue;
    const [scale = "", x = "", zoom = ""] = value;
    found[metric] = { log: scale === "log", zoom: parseZoom(zoom), x };
  }
  return found;
}

export function formatCharts(charts: Readonly<Record<string, ChartView>>): string | null {
  const changed = Object.entries(charts).filter(([, { log, zoom }]) => log || zoom !== null);
  if (changed.length === 0) return null;
  const short = ({ log, zoom, x }: ChartView) => [log ? "log" : "", ...(zoom ? [x, formatZoom(zoom)] : [])];
  return JSON.stringify(Object.fromEntries(changed.map(([metric, view]) => [metric, short(view)])));
}
