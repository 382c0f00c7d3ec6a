/** The final states. */

import type { ExperimentState, TrialState } from "../api/types";

const ENDED: ReadonlySet<ExperimentState> = new Set(["completed", "failed", "cancelled"]);
const TRIAL_ENDED: ReadonlySet<TrialState> = new Set(["completed", "stopped", "failed", "cancelled"]);

export function experimentEnded(state: ExperimentState): boolean {
  return ENDED.has(state);
}

export function hasEnded(state: TrialState): boolean {
  return TRIAL_ENDED.has(state);
}
