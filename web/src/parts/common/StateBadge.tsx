import type { ExperimentState, TrialState } from "../../api/types";
import classes from "./parts.module.css";

export const TONE: Record<ExperimentState | TrialState, string> = {
  pending: "quiet",
  running: "active",
  pausing: "held",
  paused: "held",
  cancelling: "held",
  cancelled: "quiet",
  completed: "good",
  stopped: "calm",
  failed: "bad",
};

/** The icon of each state, in a box of 12 by 12 pixels, so that states can be told apart without colors. */
const ICON: Record<ExperimentState | TrialState, string> = {
  pending: "M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M6 3.5V6l2 1.2",
  running: "M3.5 2 10 6l-6.5 4z",
  pausing: "M4 2.5v7M8 2.5v7",
  paused: "M4 2.5v7M8 2.5v7",
  cancelling: "M2.8 9.2 9.2 2.8M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9",
  cancelled: "M2.8 9.2 9.2 2.8M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9",
  completed: "M2 6.5 5 9.5 10.2 3",
  stopped: "M3 3h6v6H3z",
  failed: "M2.5 2.5l7 7M9.5 2.5l-7 7",
};
const FILLED = new Set<ExperimentState | TrialState>(["running", "stopped"]);

export function StateIcon({ state }: { state: ExperimentState | TrialState }) {
  return (
    <svg className={classes.stateIcon} data-tone={TONE[state]} viewBox="0 0 12 12" width={12} height={12} aria-hidden>
      <path d={ICON[state]} fill={FILLED.has(state) ? "currentColor" : "none"} />
    </svg>
  );
}

export function StateBadge({ state, size = "md" }: { state: ExperimentState | TrialState; size?: "sm" | "md" | "lg" }) {
  return (
    <span className={classes.state} data-tone={TONE[state]} data-size={size}>
      <StateIcon state={state} />
      {state}
    </span>
  );
}
