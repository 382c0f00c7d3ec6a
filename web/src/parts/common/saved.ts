import type { Experiment, Trial } from "../../api/types";
import { longestOf } from "../../format";

export interface Saved {
  /** Iterations that were trained, including those that restarted trials repeated. */
  done: number;
  /** Iterations that training every trial to the end would have taken. */
  full: number;
}

/** Return what `savedTraining` returns, for so many trials that the page has only a sample. The service has counted `trained`. */
export function savedOfMany(
  trained: number | null,
  experiment: Pick<Experiment, "max_t" | "scheduler" | "resolved" | "time_attr" | "counts">,
): Saved | null {
  const longest = longestOf(experiment);
  const { completed, stopped } = experiment.counts;
  if (longest === null || !trained || stopped === 0) return null;
  const full = longest * (completed + stopped);
  return trained < full ? { done: trained, full } : null;
}

/**
 * Return how much training early stopping has saved so far, over the trials that have completed or were stopped; null if
 * that cannot be said: nothing was trained or stopped, or there is no longest trial counted in reports.
 */
export function savedTraining(
  trials: readonly Trial[],
  experiment: Pick<Experiment, "max_t" | "scheduler" | "resolved" | "time_attr">,
): Saved | null {
  const longest = longestOf(experiment);
  if (longest === null || experiment.time_attr !== "training_iteration") return null;
  const ended = trials.filter((trial) => trial.state === "completed" || trial.state === "stopped");
  if (!ended.some((trial) => trial.state === "stopped" && trial.iteration < longest)) return null;
  const done = ended.reduce((sum, trial) => sum + trainedWithin(trial, longest), 0);
  const full = longest * ended.length;
  return done > 0 && done < full ? { done, full } : null;
}

/** Return how many iterations a trial has trained, without those after `longest`. */
function trainedWithin({ reports, iteration }: Trial, longest: number): number {
  return Math.max(0, reports - Math.max(0, iteration - longest));
}

export function savedShare({ done, full }: Saved): string {
  return `${Math.round(100 * (1 - done / full))} %`;
}
