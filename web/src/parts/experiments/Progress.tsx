import type { Experiment, TrialState } from "../../api/types";
import { plural } from "../../format";
import { experimentEnded } from "../../live/states";
import classes from "../common/parts.module.css";

const ORDER: [TrialState, string][] = [
  ["completed", "good"],
  ["stopped", "calm"],
  ["failed", "bad"],
  ["cancelled", "quiet"],
  ["running", "active"],
  ["paused", "held"],
  ["pending", "wait"],
];

type Counted = Pick<Experiment, "state" | "counts" | "trials" | "num_samples"> &
  Partial<Pick<Experiment, "limits" | "resolved" | "budget_spent">>;

/**
 * Return why requested trials have not been started yet, as words after their number; empty if they only wait for their
 * turn.
 */
export function heldWords({ state, counts, limits, resolved }: Counted): string {
  if (state === "paused" || state === "pausing") return " after a resume";
  if (resolved?.budget) return ", if the budget allows";
  const most = limits?.max_concurrent_trials ?? null;
  return most !== null && counts.running + counts.pending >= most ? `, at most ${most} at a time` : "";
}

/** The share of the training budget that a search has spent; null if it has none, or if it has ended. */
export function spentShare({ state, budget_spent }: Pick<Counted, "state" | "budget_spent">): number | null {
  return experimentEnded(state) ? null : (budget_spent ?? null);
}

interface Props {
  experiment: Counted;
  words?: boolean;
}

/**
 * Show the trials by state as one bar. The rest of the bar stands for trials that have not been started or, if the search ends
 * when its training budget is spent, for the rest of the budget.
 */
export function Progress({ experiment, words }: Props) {
  const { state, counts, trials, num_samples } = experiment;
  // A search that its budget has ended is complete, although not all trials that it might have started were needed.
  const complete = state === "completed" && Boolean(experiment.resolved?.budget);
  // Trials that users asked for come on top of num_samples.
  const expected = Math.max(num_samples ?? trials, trials);
  const total = Math.max(complete ? trials : expected, 1);
  const spent = spentShare(experiment);
  const scale = spent === null ? 1 / total : spent / Math.max(trials, 1);
  const share = spent === null ? null : `${Math.round(100 * spent)} % of the training budget`;
  const parts = ORDER.filter(([state]) => counts[state] > 0);
  const ended = counts.completed + counts.stopped + counts.failed + counts.cancelled;
  const said = parts.map(([state]) => `${counts[state]} ${state}`).join(", ") || "no trials yet";
  return (
    <div className={classes.progress} title={said}>
      <div
        className={classes.bar}
        role="img"
        aria-label={`${share ? `${share} spent, ` : ""}${ended} of ${plural(expected, "trial")} ended: ${said}`}
      >
        {parts.map(([state, tone]) => (
          <i key={state} data-tone={tone} style={{ width: `${100 * counts[state] * scale}%` }} />
        ))}
      </div>
      {words ? (
        <span className={classes.progressWords}>
          {share && <b title={experiment.resolved?.budget ?? undefined}>{share}</b>}
          {parts.length === 0
            ? "no trials yet"
            : parts.map(([state, tone]) => (
                <span key={state}>
                  <i data-tone={tone} aria-hidden /> {counts[state]} {state}
                </span>
              ))}
          {expected > trials && (
            <span className={classes.dimmed} title={experiment.resolved?.budget ?? undefined}>
              {expected - trials} {experimentEnded(state) ? "never started" : `to come${heldWords(experiment)}`}
            </span>
          )}
        </span>
      ) : (
        <span className={classes.progressCount}>
          {ended}/{complete ? trials : expected}
        </span>
      )}
    </div>
  );
}
