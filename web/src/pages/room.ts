/** What a trial asks for, and whether the cluster has room for it. */

import type { Cluster, Scaling } from "../api/types";
import { number } from "../format";

type Resources = Readonly<Record<string, number>>;

/** What each worker of a trial holds: one CPU, and one GPU with `use_gpu`, unless the spec says otherwise. */
export function bundleOf({ resources_per_worker, use_gpu }: Scaling): Resources {
  const given = resources_per_worker as Resources;
  return { CPU: 1, ...(use_gpu ? { GPU: 1 } : {}), ...given };
}

/** "4 × 0.5 CPU", "2 × 1 GPU, 4 CPU": how many workers, and what each holds. */
export function askedWords(workers: number | string, resources: Resources): string {
  const each = Object.entries(resources)
    .filter(([, amount]) => amount > 0)
    .sort(([a], [b]) => Number(b === "GPU") - Number(a === "GPU"))
    .map(([name, amount]) => `${number(amount)} ${name}`);
  return `${workers} × ${each.join(", ") || "no CPU"}`;
}

/** The number of ranks of a trial: "2", or "1 to 8" if it is elastic. */
export function workersOf({ num_workers, max_workers }: Pick<Scaling, "num_workers" | "max_workers">): string {
  return (max_workers ?? 0) > num_workers ? `${num_workers} to ${max_workers}` : `${num_workers}`;
}

/** "for 2 trials at once, if nothing else runs", or why there is none. Only CPUs and GPUs count. */
export function roomWords(scaling: Scaling, { nodes }: Pick<Cluster, "nodes">): string {
  const bundle = bundleOf(scaling);
  const [cpu, gpu] = [bundle["CPU"] ?? 0, bundle["GPU"] ?? 0];
  if (cpu <= 0 && gpu <= 0) return "for any number of trials";
  const places = nodes.reduce((sum, { cpus, gpus }) => {
    const most = Math.min(cpu > 0 ? cpus / cpu : Infinity, gpu > 0 ? gpus / gpu : Infinity);
    return sum + Math.floor(most + 1e-9);
  }, 0);
  const trials = Math.floor(places / scaling.num_workers);
  if (trials === 0) return `none: the cluster has room for ${places} of its ${scaling.num_workers} workers`;
  return `for ${trials} ${trials === 1 ? "trial" : "trials"} at once, if nothing else runs`;
}
