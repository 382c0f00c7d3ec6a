/** The rungs of successive halving: the levels at which trials are compared and the worse ones stopped or paused. */

import type { Experiment } from "../api/types";

const HALVING: ReadonlySet<unknown> = new Set(["asha", "asha_promotion", "hyperband"]);

/** Return the levels of all brackets up to the longest trial, in units of time_attr, in ascending order. Empty for other schedulers. */
export function rungLevels({
  resolved,
  scheduler,
  max_t,
}: Pick<Experiment, "resolved" | "scheduler" | "max_t">): number[] {
  const options = resolved?.scheduler ?? scheduler;
  if (!HALVING.has(options["type"])) return [];
  const grace = positive(options["grace_period"]) ?? 1;
  const eta = positive(options["reduction_factor"]) ?? 3;
  const end = positive(options["max_t"]) ?? max_t;
  if (end === null || eta <= 1) return [];
  // HyperBand's rungs are max_t divided by powers of eta. ASHA's rungs are the grace period multiplied by powers of eta.
  const levels: number[] = [];
  // They are not too many: the service takes no reduction factor below 1.1.
  for (let k = 0; ; k++) {
    const level = options["type"] === "hyperband" ? Math.floor(end / eta ** (k + 1)) : plain(grace * eta ** k);
    if (level >= end || level === 0) break;
    levels.push(level);
  }
  return [...new Set(levels)].sort((a, b) => a - b);
}

function positive(value: unknown): number | null {
  return typeof value === "number" && value > 0 ? value : null;
}

/** Round away the error of binary fractions. */
function plain(value: number): number {
  return Number(value.toPrecision(12));
}
