/** The content of the form for editing an experiment, and the part of it that is sent: only what differs. */

import type { ExperimentPatch } from "../../api/client";
import { exactText } from "../../api/exact";
import { LIMITS } from "../../api/limits";
import { stringify } from "yaml";
import type { Experiment } from "../../api/types";
import { readMapping } from "../common/mapping";
import { tagsOf, tagsText } from "./tags";
import { bare, own } from "../../own";

type Limit = (typeof LIMITS)[number][0];

export interface Draft {
  name: string;
  notes: string;
  tags: string;
  priority: number | "";
  weight: number | "";
  num_samples: number | "";
  limits: Record<Limit, number | string>;
  /** The search space as YAML. */
  space: string;
  /** The values that new parameters had in the trials so far, as YAML. */
  assume: string;
}

type Source = Pick<Experiment, "name" | "notes" | "tags" | "priority" | "weight" | "num_samples" | "limits" | "space">;
type Json = Readonly<Record<string, unknown>>;

export function draftOf(experiment: Source): Draft {
  const { name, notes, tags, priority, weight, num_samples, limits } = experiment;
  return {
    name,
    notes,
    tags: tagsText(tags),
    priority,
    weight,
    num_samples: num_samples ?? "",
    limits: Object.fromEntries(LIMITS.map(([key]) => [key, limits[key] ?? ""])) as Draft["limits"],
    space: stringify(experiment.space),
    assume: "",
  };
}

/** What was typed into the form, as YAML: the fields that differ from `before`; empty if none does. */
export function typedText(before: Draft, now: Draft): string {
  const fieldsOf = ({ limits, ...fields }: Draft): Json => ({ ...fields, ...limits });
  const old = fieldsOf(before);
  const typed = Object.entries(fieldsOf(now)).filter(([field, value]) => value !== old[field]);
  return typed.length > 0 ? stringify(Object.fromEntries(typed), { lineWidth: 0 }) : "";
}

/** Say why the text is not a search space; null if it is a mapping. The service checks what is in it. */
export const wrongSpace = (text: string): string | null => readMapping(text, SPACE_LINE)[1];

export const wrongAssumption = (text: string): string | null =>
  text.trim() === "" ? null : readMapping(text, "width: 32")[1];

const SPACE_LINE = "lr: {type: loguniform, lower: 0.0001, upper: 0.1}";

/** The merge patch (RFC 7396) that turns the space `before` into the space `after`. A domain is replaced as a whole. */
export function spacePatch(before: Json, after: Json): Record<string, unknown> {
  const patch = bare<unknown>();
  for (const name of Object.keys(before)) if (!Object.hasOwn(after, name)) patch[name] = null;
  for (const [name, value] of Object.entries(after)) {
    const old = own(before, name);
    if (isGroup(old) && isGroup(value)) {
      const inner = spacePatch(old, value);
      if (Object.keys(inner).length > 0) patch[name] = inner;
    } else if (isMapping(old) && isGroup(value)) {
      // The group is merged into the domain, whose fields have to be removed.
      const gone = Object.keys(old).filter((field) => !Object.hasOwn(value, field));
      patch[name] = { ...Object.fromEntries(gone.map((field) => [field, null])), ...(kept(value) as Json) };
    } else if (!Object.hasOwn(before, name) || exactText(old) !== exactText(value)) patch[name] = kept(value);
  }
  return patch;
}

/** A new value as part of a patch, in which null alone would remove the parameter. */
function kept(value: unknown): unknown {
  if (value === null) return { type: "const", value };
  return isGroup(value) ? Object.fromEntries(Object.entries(value).map(([name, one]) => [name, kept(one)])) : value;
}

function isMapping(value: unknown): value is Json {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Several parameters under one name. A domain has a type. */
function isGroup(value: unknown): value is Json {
  return isMapping(value) && typeof value["type"] !== "string";
}

/** The limit that a text stands for, if a word may be given instead of a number: a number if it is one, else the text. */
export const limitOf = (text: string): number | string => (/^\d+$/.test(text.trim()) ? Number(text) : text.trim());

/** Say why the value is not a limit, if this word may be given instead of a number; null if it is one. */
export const wrongLimit = (value: number | string, word: string): string | null =>
  typeof value === "number" || value === word ? null : `expected ${word} or a number of 0 or more`;

/** An empty number is null, which lifts the limit; the service says so if one cannot be lifted. */
export function patchOf(experiment: Source, draft: Draft): ExperimentPatch {
  const before = draftOf(experiment);
  const patch: ExperimentPatch = {};
  if (draft.name !== before.name) patch.name = draft.name;
  if (draft.notes !== before.notes) patch.notes = draft.notes;
  if (draft.tags !== before.tags) patch.tags = tagsOf(draft.tags, experiment.tags);
  if (draft.priority !== before.priority && draft.priority !== "") patch.priority = draft.priority;
  if (draft.weight !== before.weight && draft.weight !== "") patch.weight = draft.weight;
  if (draft.num_samples !== before.num_samples) patch.num_samples = draft.num_samples === "" ? null : draft.num_samples;
  const limits = LIMITS.flatMap(([key]) =>
    draft.limits[key] === before.limits[key] ? [] : [[key, draft.limits[key] === "" ? null : draft.limits[key]]],
  );
  if (limits.length > 0) patch.limits = Object.fromEntries(limits) as Record<string, number | string | null>;
  const [space] = readMapping(draft.space, SPACE_LINE);
  const changed = space === null ? {} : spacePatch(experiment.space, space);
  if (Object.keys(changed).length > 0) {
    patch.space = changed;
    const [assumed] = readMapping(draft.assume || "{}", "width: 32");
    if (assumed !== null && Object.keys(assumed).length > 0) patch.assume = assumed;
  }
  return patch;
}

/** Return the fields to which two patches give different values: their pointers, with the values in the second one. */
export function clashes(mine: object, theirs: object, at = ""): [pointer: string, value: unknown][] {
  const others = theirs as Json;
  return Object.entries(mine as Json).flatMap(([name, value]) => {
    if (!Object.hasOwn(others, name)) return [];
    const other = others[name];
    const pointer = `${at}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    if (isMapping(value) && isMapping(other)) return clashes(value, other, pointer);
    return exactText(value) === exactText(other) ? [] : [[pointer, other]];
  });
}

/** Return the experiment with the values that `clashes` found. */
export function withClashes<Of extends Source>(experiment: Of, found: ReturnType<typeof clashes>): Of {
  return found.reduce((before, [pointer, value]) => {
    const path = pointer
      .slice(1)
      .split("/")
      .map((name) => name.replaceAll("~1", "/").replaceAll("~0", "~"));
    return withValue(before, path, value) as Of;
  }, experiment);
}

function withValue(before: Json, [name, ...path]: readonly string[], value: unknown): Json {
  const { [name!]: old, ...rest } = before;
  if (path.length > 0) return { ...before, [name!]: withValue(isMapping(old) ? old : {}, path, value) };
  return value === null ? rest : { ...before, [name!]: value };
}
