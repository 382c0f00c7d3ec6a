/** The content of the form in which an experiment is changed, and the part of it that is sent: only what differs. */

import type { ExperimentPatch } from "../../api/client";
import type { Experiment } from "../../api/types";
import { tagsOf, tagsText } from "./tags";

export const LIMITS = [
  ["max_concurrent_trials", "Trials at the same time", "empty: as many as fit on the cluster"],
  ["time_budget_s", "Running time, in seconds", "empty: no limit; pauses do not count"],
  ["gpu_hours", "GPU hours", "empty: no limit"],
  ["max_failures", "Retries of a trial", "after errors of its code"],
  ["hang_timeout_s", "Hang timeout, in seconds", "without a report; empty: never"],
] as const;

type Limit = (typeof LIMITS)[number][0];

export interface Draft {
  name: string;
  notes: string;
  tags: string;
  priority: number | "";
  weight: number | "";
  num_samples: number | "";
  limits: Record<Limit, number | "">;
}

type Source = Pick<Experiment, "name" | "notes" | "tags" | "priority" | "weight" | "num_samples" | "limits">;

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
  };
}

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
  if (limits.length > 0) patch.limits = Object.fromEntries(limits) as Record<string, number | null>;
  return patch;
}
