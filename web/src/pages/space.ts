/** The search space of a new experiment as rows of a form, and the changes that its fields make to the spec. */

import { exactly } from "../api/exact";
import { withPoint } from "../parts/actions/values";
import type { Spec } from "./spec";

/** The types of domains that the form can edit, with what each of them needs. */
export const KINDS: Readonly<Record<string, { label: string; fields: readonly string[] }>> = {
  uniform: { label: "uniform: any number", fields: ["lower", "upper"] },
  loguniform: { label: "loguniform: any number, on a log scale", fields: ["lower", "upper"] },
  quniform: { label: "quniform: multiples of q", fields: ["lower", "upper", "q"] },
  qloguniform: { label: "qloguniform: multiples of q, on a log scale", fields: ["lower", "upper", "q"] },
  randint: { label: "randint: whole numbers below the upper end", fields: ["lower", "upper"] },
  lograndint: { label: "lograndint: whole numbers, on a log scale", fields: ["lower", "upper"] },
  choice: { label: "choice: one of these values", fields: ["categories"] },
  grid_search: { label: "grid_search: each of these values, one after the other", fields: ["values"] },
  const: { label: "const: always this value", fields: ["value"] },
};

const NUMBERS = ["lower", "upper", "q"];
/** The initial values of a parameter that has none yet. */
const FRESH: Readonly<Record<string, unknown>> = {
  lower: 0,
  upper: 1,
  q: 0.1,
  categories: [1, 2],
  values: [1, 2],
  value: 1,
};
const LEAST: Readonly<Record<string, unknown>> = { lower: 0.0001, upper: 0.1 };
const WHOLE: Readonly<Record<string, unknown>> = { lower: 1, upper: 10 };

export interface SpaceRow {
  name: string;
  domain: unknown;
  /** The type of a domain that the form can edit; null for others, such as groups and choices between groups. */
  kind: string | null;
}

export function rowsOfSpace(spec: Spec | null): SpaceRow[] {
  const space = spec?.["space"];
  if (!isMapping(space)) return [];
  return Object.entries(space).map(([name, domain]) => ({ name, domain, kind: kindOf(domain) }));
}

function kindOf(domain: unknown): string | null {
  if (domain === null || typeof domain !== "object") return "const";
  if (!isMapping(domain)) return null;
  const type = domain["type"];
  const kind = typeof type === "string" ? KINDS[type] : undefined;
  if (!kind) return null;
  // Values that are groups of parameters, and options that the form has no field for, are edited in the YAML.
  const known = ["type", ...kind.fields];
  const values = domain["categories"] ?? domain["values"] ?? [];
  const plain = !Array.isArray(values) || values.every((one) => one === null || typeof one !== "object");
  return plain && Object.keys(domain).every((key) => known.includes(key)) ? (type as string) : null;
}

/** The text of one field of a domain: values are separated by commas. */
export function fieldText(domain: unknown, field: string): string {
  const value = isMapping(domain) ? domain[field] : field === "value" ? domain : undefined;
  if (value === undefined) return "";
  return Array.isArray(value) ? value.map(shown).join(", ") : shown(value);
}

/** The domain with one field changed to what a text stands for. */
export function withText(domain: unknown, field: string, text: string): unknown {
  const changed: Record<string, unknown> = isMapping(domain) ? { ...domain } : { type: "const" };
  if (field === "categories" || field === "values") {
    changed[field] = parts(text).map(read);
  } else if (NUMBERS.includes(field)) {
    // The comma of a whole number, as in 1,000, does not separate decimals.
    const whole = String(changed["type"]).endsWith("randint");
    const number = whole ? text.trim() : withPoint(text.trim());
    changed[field] = number === "" ? null : read(number);
  } else changed[field] = read(text.trim());
  return changed;
}

/** A domain of another type, with those fields of this one that both types have. */
export function asKind(domain: unknown, kind: string): Record<string, unknown> {
  const old = isMapping(domain) ? domain : { value: domain };
  const values = old["categories"] ?? old["values"];
  const log = kind.includes("log");
  const fresh = { ...FRESH, ...(kind.endsWith("randint") ? WHOLE : log ? LEAST : {}) };
  const fields = KINDS[kind]!.fields.map((field) => {
    if ((field === "categories" || field === "values") && Array.isArray(values)) return [field, values];
    const kept = old[field];
    const fits = kept !== undefined && !(log && field === "lower" && typeof kept === "number" && kept <= 0);
    return [field, fits ? kept : fresh[field]];
  });
  return { type: kind, ...Object.fromEntries(fields as [string, unknown][]) };
}

/** A name that the space does not have yet. */
export function freshName(rows: readonly SpaceRow[]): string {
  for (let n = rows.length + 1; ; n++) if (!rows.some((row) => row.name === `p${n}`)) return `p${n}`;
}

/** Split at commas that are not inside quotes. Brackets around the whole list, as in Python and JSON, are left out. */
function parts(text: string): string[] {
  const list = /^\s*(?:\[([^[\]]*)\]|\(([^()]*)\))\s*$/.exec(text);
  const items = (list?.[1] ?? list?.[2] ?? text).match(/\s*'(?:[^'\\]|\\.)*'\s*(?=,|$)|(?:"(?:[^"\\]|\\.)*"|[^,])+/g);
  return (items ?? []).map((one) => one.trim()).filter((one) => one !== "");
}

/** The constants of Python. */
const CONSTANTS: Readonly<Record<string, boolean | null>> = { True: true, False: false, None: null };

/** The value that a text stands for in JSON or Python, also a number such as 1e-3; otherwise the text itself. */
function read(text: string): unknown {
  if (Object.hasOwn(CONSTANTS, text)) return CONSTANTS[text];
  const quoted = /^'((?:[^'\\]|\\.)*)'$/.exec(text);
  if (quoted) return quoted[1]!.replace(/\\(['\\])/g, "$1");
  try {
    return exactly(text);
  } catch {
    return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  }
}

/** A text without quotes if it would be read as the same text again. */
function shown(value: unknown): string {
  const plain =
    typeof value === "string" &&
    value !== "" &&
    read(value) === value &&
    !/^[[(']|[,"]/.test(value) &&
    value.trim() === value;
  return plain ? value : JSON.stringify(value);
}

function isMapping(value: unknown): value is Readonly<Record<string, unknown>> {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
