/** The resources that running trials hold. The list of experiments needs no more than this of `room.ts`. */

import type { Experiment, Scaling } from "../api/types";
import { number, plural } from "../format";

export type Resources = Readonly<Record<string, number>>;

/** The resources of each worker of a trial: one CPU, and one GPU with `use_gpu`, unless the spec says otherwise. */
export function bundleOf({ resources_per_worker, use_gpu }: Scaling): Resources {
  const given = resources_per_worker as Resources;
  return { CPU: 1, ...(use_gpu ? { GPU: 1 } : {}), ...given };
}

/** Say that an experiment runs, but none of its trials does, because they wait: "2 trials wait"; empty if that is not so. */
export function onlyWaits({ state, counts }: Pick<Experiment, "state" | "counts">): string {
  if (state !== "running" || counts.running > 0 || counts.pending === 0) return "";
  return counts.pending === 1 ? "1 trial waits" : `${counts.pending} trials wait`;
}

/**
 * Say what the running trials of an experiment hold: "4 GPUs", "at least 4 GPUs" if they are elastic, or "2 CPUs" without GPUs.
 * Empty if none runs, or if they run on agents, which use nothing of the cluster.
 */
export function inUse({ counts, scaling, executor }: Pick<Experiment, "counts" | "scaling" | "executor">): string {
  if (counts.running === 0 || executor === "agents") return "";
  const each = bundleOf(scaling);
  const unit = each["GPU"] ? "GPU" : "CPU";
  const amount = counts.running * scaling.num_workers * (each[unit] ?? 0);
  const least = (scaling.max_workers ?? 0) > scaling.num_workers ? "at least " : ""; // elastic trials may have grown
  return least + plural(number(amount), unit);
}
