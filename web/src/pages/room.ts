/** The resources that a trial needs, and the room that the cluster has for it. */

import type { Cluster, DryRun, Scaling } from "../api/types";
import { duration, number, plural, trained } from "../format";
import { bundleOf, type Resources } from "./held";

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

/** The nodes of a cluster, and those that may still join. */
export type Room = Pick<Cluster, "nodes" | "may_join">;

/** Return how many workers the empty nodes have room for, and how many those that may still join. Only CPUs and GPUs count. */
function placesFor(scaling: Scaling, { nodes, may_join }: Room): { now: number; joining: number } {
  const bundle = bundleOf(scaling);
  const [cpu, gpu] = [bundle["CPU"] ?? 0, bundle["GPU"] ?? 0];
  const on = ({ cpus, gpus }: { cpus: number; gpus: number }) => {
    const most = Math.min(cpu > 0 ? cpus / cpu : Infinity, gpu > 0 ? gpus / gpu : Infinity);
    return Math.floor(most + 1e-9);
  };
  return {
    now: nodes.reduce((sum, node) => sum + on(node), 0),
    joining: may_join.reduce((sum, node) => sum + node.count * on(node), 0),
  };
}

/**
 * Return how many trials the cluster has room for, as in "for 2 trials at once, if nothing else runs, and for 6 with the nodes that
 * may still join", or why it has room for none.
 */
export function roomWords(scaling: Scaling, cluster: Room): string {
  const { now, joining } = placesFor(scaling, cluster);
  if (now === Infinity) return "for any number of trials";
  const [trials, later] = [now, now + joining].map((places) => Math.floor(places / scaling.num_workers)) as [
    number,
    number,
  ];
  const many = (count: number) => plural(count.toLocaleString("en"), "trial");
  if (later === 0) {
    const more = joining > 0 ? `, and the nodes that may still join for ${joining} more` : "";
    return `none: the cluster has room for ${now} of its ${plural(scaling.num_workers, "worker")}${more}`;
  }
  if (trials === 0) return `none on the present nodes; for ${many(later)} at once with the nodes that may still join`;
  const grown = later > trials ? `, and for ${later.toLocaleString("en")} with the nodes that may still join` : "";
  return `for ${many(trials)} at once, if nothing else runs${grown}`;
}

type Asked = Pick<
  DryRun,
  "num_samples" | "max_t" | "time_attr" | "scaling" | "limits" | "scheduler" | "gpu_hours_at_most"
>;

/**
 * The maximum cost of a search, without early stopping or by its budget: "1,024 iterations; at 30 s each, 8 h 32 min of
 * training and 17 GPU hours, in about 2 h 8 min with 4 trials at once". `seconds`: how long an iteration takes, if that is known.
 */
export function costWords(asked: Asked, seconds: number | null, cluster: Room | undefined): string {
  const { num_samples, max_t, time_attr, scaling, limits, scheduler, gpu_hours_at_most } = asked;
  const gpus = !gpu_hours_at_most ? [] : [plural(number(gpu_hours_at_most), "GPU hour")];
  if (num_samples === null || max_t === null) return gpus.length > 0 ? `at most ${gpus[0]}` : "no limit";
  const budget = limits.budget ?? scheduler["budget"];
  const units = max_t * (typeof budget === "number" ? Math.min(budget, num_samples) : num_samples);
  const each = time_attr === "time_total_s" ? 1 : seconds;
  const whole = trained(Math.round(units).toLocaleString("en"), time_attr);
  if (each === null) return [whole, ...gpus].join(", ");
  const total = units * each;
  // A search uses the nodes that may still join, too.
  const places = cluster && placesFor(scaling, cluster);
  const room = places ? Math.floor((places.now + places.joining) / scaling.num_workers) : Infinity;
  const most = Math.min(room, limits.max_concurrent_trials ?? Infinity, num_samples);
  const soon = Number.isFinite(most) && most > 1 && (cluster !== undefined || limits.max_concurrent_trials !== null);
  return [
    `${whole}; ${time_attr === "time_total_s" ? "" : `at ${number(each)} s each, `}${duration(total)} of training`,
    ...(gpus.length > 0 ? [` and ${gpus[0]}`] : []),
    ...(soon ? [`, in about ${duration(total / most)} with ${most} trials at once`] : []),
  ].join("");
}

/**
 * Say what the scheduler will probably do with the trials: "27 trials reach 1 iteration, 8 reach 4, 3 reach 27; 4 GPU hours". Empty if
 * that is unknown.
 */
export function reachWords({ reached, expected_gpu_hours }: Pick<DryRun, "reached" | "expected_gpu_hours">): string {
  if (reached === null || reached.length === 0) return "";
  return [
    ...reached.map(({ trials, iteration }, index) =>
      index === 0
        ? `${trials} ${trials === 1 ? "trial reaches" : "trials reach"} ${trained(String(iteration), "training_iteration")}`
        : `, ${trials} ${trials === 1 ? "reaches" : "reach"} ${iteration}`,
    ),
    ...(expected_gpu_hours ? [`; ${plural(number(expected_gpu_hours), "GPU hour")}`] : []),
  ].join("");
}
