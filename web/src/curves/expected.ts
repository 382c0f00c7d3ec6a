/** The expected value of each trial's configuration, by which trials are ranked after repeats. The service sends the model. */

import type { Experiment, Trial } from "../api/types";

type Runs = NonNullable<NonNullable<Experiment["best"]>["runs"]>;
type Judged = Pick<Trial, "number" | "best_value" | "repeat_of">;

export interface Expected {
  /** The expected value; null for trials without a result, and for runs that do not count. */
  value: (trial: Judged) => number | null;
  /** A run of its configuration failed, diverged or violated the constraints, so it does not lead. */
  dropped: (trial: Judged) => boolean;
  /** The runs of its configuration; null if there is only one. */
  runs: (trial: Judged) => Runs["repeated"][number] | null;
}

/** Return the expected values of the trials; null without repeats. */
export function expectedOf(best: Pick<NonNullable<Experiment["best"]>, "runs"> | null): Expected | null {
  const runs = best?.runs;
  const single = runs?.single;
  if (!runs || !single || single.middle === null) return null;
  const { middle, weight } = single;
  const several = new Map(runs.repeated.flatMap((one) => one.trials.map((number) => [number, one] as const)));
  const gone = new Set(runs.dropped);
  return {
    value: (trial) => {
      const found = several.get(trial.number);
      if (found) return found.expected;
      if (trial.best_value === null || trial.repeat_of !== null) return null;
      return middle + (weight ?? 1) * (trial.best_value - middle);
    },
    dropped: (trial) => gone.has(trial.repeat_of ?? trial.number),
    runs: (trial) => several.get(trial.number) ?? null,
  };
}
