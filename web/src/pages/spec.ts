/** The spec of a new experiment: the part that the form shows, and the part that it takes over from another experiment. */

import { isMap, isScalar, parseDocument } from "yaml";
import type { Experiment } from "../api/types";

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

/**
 * The spec as it was requested, without what the service has filled in.
 *
 * A `warm_start` of null stays, because a spec without one gets that of its project's settings.
 */
export function specOf(experiment: Experiment): Spec {
  const several = experiment.objectives.length > 1;
  const parts: Record<string, unknown> = {
    name: experiment.name,
    project: experiment.project === "default" ? null : experiment.project,
    entrypoint: experiment.entrypoint,
    bundle: experiment.bundle,
    metric: several ? experiment.objectives.map(({ metric }) => metric) : experiment.metric,
    mode: several ? experiment.objectives.map(({ mode }) => mode) : experiment.mode,
    scope: experiment.scope === "all" ? null : experiment.scope,
    space: experiment.space,
    search: experiment.search,
    scheduler: experiment.scheduler,
    stop: experiment.stop,
    num_samples: experiment.num_samples,
    max_t: experiment.max_t,
    time_attr: experiment.time_attr === "training_iteration" ? null : experiment.time_attr,
    seed: experiment.seed,
    scaling: plain(experiment.scaling),
    limits: plain(experiment.limits),
  };
  return { ...plain(parts), warm_start: experiment.warm_start };
}

/** A seed that differs from that of the original, so that a copy tries other configurations. */
export function newSeed(seed: number, random: () => number = Math.random): number {
  const found = Math.floor(random() * 1e6);
  return found === seed ? found + 1 : found;
}

/** A section without the options that are null or empty. */
function plain(section: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(section).filter(([, value]) => value !== null && !isEmpty(value)));
}

function isEmpty(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length === 0;
}

/** The text with one field changed; undefined removes it. Comments and the form of everything else stay. */
export function withField(text: string, path: readonly string[], value: unknown): string {
  const document = parseDocument(text);
  if (value === undefined || value === "") document.deleteIn(path);
  else {
    // A field cannot be added to an empty section ("scaling:").
    for (let i = 1; i < path.length; i++)
      if (!isMap(document.getIn(path.slice(0, i)))) document.setIn(path.slice(0, i), document.createNode({}));
    document.setIn(path, document.createNode(value));
  }
  return document.toString();
}

/** The text with a parameter of the space renamed in place. */
export function withName(text: string, from: string, to: string): string {
  const document = parseDocument(text);
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
