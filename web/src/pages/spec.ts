/** The spec of a new experiment, and what the form shows of it. */

import { isMap, isScalar, parseDocument } from "yaml";

export type Spec = Readonly<Record<string, unknown>>;

export const EXAMPLE: Spec = {
  name: "digits",
  entrypoint: "tuner.examples.digits:train",
  metric: "accuracy",
  mode: "max",
  space: {
    lr: { type: "loguniform", lower: 1e-4, upper: 0.1 },
    width: { type: "choice", categories: [16, 32, 64] },
  },
  num_samples: 16,
  max_t: 27,
  scheduler: { type: "auto" },
  scaling: { num_workers: 1 },
};

/** The fields of a spec in the order in which people read them. Others come after these. */
const ORDER = [
  "name",
  "project",
  "entrypoint",
  "bundle",
  "metric",
  "mode",
  "scope",
  "space",
  "points_to_evaluate",
  "search",
  "scheduler",
  "stop",
  "num_samples",
  "max_t",
  "time_attr",
  "seed",
  "scaling",
  "limits",
  "checkpoint",
  "executor",
  "runtime_env",
  "warm_start",
];

/** The spec with its fields in the order in which people read them. */
export function inReadingOrder(spec: Spec): Spec {
  const place = (name: string) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  return Object.fromEntries(Object.entries(spec).sort(([a], [b]) => place(a) - place(b)));
}

/** A seed that differs from that of the original, so that a copy tries other configurations. */
export function newSeed(seed: number, random: () => number = Math.random): number {
  const found = Math.floor(random() * 1e6);
  return found === seed ? found + 1 : found;
}

/** Keeps the digits of whole numbers above 2^53. */
const EXACT = { intAsBigInt: true };

/** The text with one field changed; undefined removes it. Comments and the form of everything else stay. */
export function withField(text: string, path: readonly string[], value: unknown): string {
  const document = parseDocument(text, EXACT);
  if (value === undefined || value === "") {
    if (document.hasIn(path)) document.deleteIn(path); // without its section, deleteIn would raise an error
  } else {
    // A field cannot be added to an empty section ("scaling:").
    for (let i = 1; i < path.length; i++)
      if (!isMap(document.getIn(path.slice(0, i)))) document.setIn(path.slice(0, i), document.createNode({}));
    document.setIn(path, document.createNode(value));
  }
  return document.toString();
}

/** The text with a parameter of the space renamed in place. */
export function withName(text: string, from: string, to: string): string {
  const document = parseDocument(text, EXACT);
  const space = document.get("space");
  if (isMap(space)) {
    const pair = space.items.find(({ key }) => (isScalar(key) ? key.value : key) === from);
    if (pair) pair.key = document.createNode(to);
  }
  return document.toString();
}

export function textOf(spec: Spec | null, name: string): string {
  const value = spec?.[name];
  return typeof value === "string" ? value : Array.isArray(value) ? value.join(", ") : "";
}

export function numberOf(spec: Spec | null, name: string): number | "" {
  const value = spec?.[name];
  return typeof value === "number" ? value : "";
}

/** Return how often leading configurations are repeated, as typed: a number, "auto", or nothing. */
export function repeatsOf(spec: Spec | null): string {
  const limits = spec?.["limits"] as Spec | null | undefined;
  const repeats = limits?.["repeats"];
  return typeof repeats === "string" || typeof repeats === "number" ? String(repeats) : "";
}
