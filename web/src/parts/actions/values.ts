/** Values of parameters as people type them: fields made from a search space, and what their text stands for. */

import { ApiError } from "../../api/client";
import { exactly, exactText } from "../../api/exact";
import type { Experiment, Params } from "../../api/types";
import { category, distinct, type Labels } from "../../format";
import { domainWords } from "../setup/Setup";
import { own } from "../../own";

export interface Field {
  /** The path of the parameter, such as "optimizer/lr". */
  name: string;
  /** The domain in words: "loguniform(0.0001, 0.1)". */
  about: string;
  /** The values to choose from; null if it is typed. The text is what people read. */
  options: readonly Option[] | null;
  /** Whether the value is a number that may have decimals. */
  decimal: boolean;
}

interface Option {
  text: string;
  value: unknown;
}

/**
 * The fields of the parameters of a space, named by their paths. Those of a branch are there only if it is chosen:
 * `textAt` returns the text of a field. `labels`: what the indices of choices stand for. `more`: other parameters.
 */
export function fieldsOf(
  { space, labels }: Pick<Experiment, "space" | "labels">,
  textAt: (field: Field) => string = () => "",
  more: readonly string[] = [],
): Field[] {
  const fields = fieldsIn(space, "", labels, textAt);
  const isKnown = (name: string) => fields.some((one) => one.name === name || name.startsWith(`${one.name}/`));
  return [...fields, ...more.filter((name) => !isKnown(name)).map((name) => fieldOf(name, undefined, labels))];
}

type Node = Readonly<Record<string, unknown>>;

/** The types of domains whose values may have decimals. */
const DECIMAL: readonly unknown[] = ["uniform", "loguniform", "quniform", "qloguniform", "randn", "qrandn"];

/** The types of a space's parts that are not drawn at random. */
const FIXED: readonly unknown[] = ["const", "python", "sample_from"];

function fieldsIn(node: unknown, path: string, labels: Labels, textAt: (field: Field) => string): Field[] {
  if (node === null || typeof node !== "object") return [];
  const { type, ...rest } = node as Node;
  if (type === "tuple") return fieldsIn(rest["items"], path, labels, textAt);
  if (FIXED.includes(type)) return [];
  const categories = rest["categories"] ?? rest["values"] ?? rest["grid_search"];
  const inner = (key: string) => (path === "" ? key : `${path}/${key}`);
  if (typeof type !== "string" && !isGrid(node))
    return Object.entries(node).flatMap(([key, part]) =>
      fieldsIn(part, inner(key.replaceAll("~", "~0").replaceAll("/", "~1")), labels, textAt),
    );
  const field = fieldOf(path, node as Node, labels);
  const index = valueOf(field, textAt(field));
  const branch = Array.isArray(categories) && typeof index === "number" ? (categories[index] as unknown) : undefined;
  return [field, ...fieldsIn(branch, inner(String(index)), labels, textAt)];
}

/** True for a domain in Ray's form. */
function isGrid(node: object): boolean {
  return Object.keys(node).length === 1 && "grid_search" in node && Array.isArray(node.grid_search);
}

function fieldOf(name: string, domain: Node | undefined, labels: Labels): Field {
  const indexed = own(labels, name);
  if (indexed) return { name, about: "choice", options: optionsOf(indexed, [...indexed.keys()]), decimal: false };
  const categories =
    domain?.["type"] === "choice" && Array.isArray(domain["categories"]) ? (domain["categories"] as unknown[]) : null;
  const plain = categories?.every((one) => one === null || typeof one !== "object") ?? false;
  return {
    name,
    about: domain === undefined ? "" : domainWords(domain),
    options: categories && plain ? optionsOf(categories, categories) : null,
    decimal: DECIMAL.includes(domain?.["type"]),
  };
}

/** The options with these labels. */
function optionsOf(labels: readonly unknown[], values: readonly unknown[]): Option[] {
  // An empty field means that the value is drawn, so an empty text is shown with its quotes.
  return distinct(labels, values).map((text, i) => ({ text: text || '""', value: values[i] }));
}

/**
 * Return a number that has a decimal comma with a point in its place, and other texts unchanged. So is 1,000, whose comma may stand
 * between thousands: the service refuses it.
 */
export function withPoint(text: string): string {
  if (/^-?[1-9]\d{0,2},\d{3}$/.test(text)) return text;
  return text.replace(/^(-?\d*),(\d+(?:e[+-]?\d+)?)$/i, "$1.$2");
}

/** The value that a text stands for: the parsed text if it is JSON, otherwise the text itself. */
export function valueOf(field: Field, text: string): unknown {
  if (field.options) {
    const option = field.options.find((one) => one.text === text);
    return option ? option.value : text;
  }
  try {
    return exactly(field.decimal ? withPoint(text) : text);
  } catch {
    return text;
  }
}

export function textOf(field: Field, value: unknown): string {
  if (value === undefined) return "";
  const option = field.options?.find((one) => exactText(one.value) === exactText(value));
  if (option) return option.text;
  return category(value);
}

/** The texts of the fields for these parameters; "" for those that are not among them. */
export function textsOf(
  experiment: Pick<Experiment, "space" | "labels">,
  params: Params,
  more: readonly string[] = [],
): Record<string, string> {
  const text = (field: Field) => (Object.hasOwn(params, field.name) ? textOf(field, params[field.name]) : "");
  return Object.fromEntries(fieldsOf(experiment, text, more).map((field) => [field.name, text(field)]));
}

/** The values of the fields that are not empty. */
export function filled(fields: readonly Field[], texts: Readonly<Record<string, string>>): Record<string, unknown> {
  return Object.fromEntries(
    fields.flatMap((field) => {
      const typed = own(texts, field.name) ?? "";
      const text = field.options ? typed : typed.trim();
      return text === "" ? [] : [[field.name, valueOf(field, text)]];
    }),
  );
}

/** What the service says about each parameter, by its path. The last part of a pointer is the path. */
export function mistakesIn(error: Error | null): Readonly<Record<string, string>> {
  const found = error instanceof ApiError ? (error.problem?.errors ?? []) : [];
  return Object.fromEntries(
    found.map(({ pointer, message }) => [
      pointer.split("/").at(-1)!.replaceAll("~1", "/").replaceAll("~0", "~"),
      message,
    ]),
  );
}
