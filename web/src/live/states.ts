/** The final states, and the schedulers whose trials take over weights. */

import type { Experiment, ExperimentState, TrialState } from "../api/types";

const ENDED: ReadonlySet<ExperimentState> = new Set(["completed", "failed", "cancelled"]);
const TRIAL_ENDED: ReadonlySet<TrialState> = new Set(["completed", "stopped", "failed", "cancelled"]);

export function experimentEnded(state: ExperimentState): boolean {
  return ENDED.has(state);
}

export function hasEnded(state: TrialState): boolean {
  return TRIAL_ENDED.has(state);
}

const POPULATION_BASED: ReadonlySet<unknown> = new Set(["pbt", "pb2"]);

/** Return true if trials take over each other's weights in this search. */
export function isPopulationBased({ scheduler, resolved }: Pick<Experiment, "scheduler" | "resolved">): boolean {
  return POPULATION_BASED.has((resolved?.scheduler ?? scheduler)["type"]);
}
