import type { ExperimentState, TrialState } from "../api/types";
import classes from "./parts.module.css";

const TONE: Record<ExperimentState | TrialState, string> = {
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

export function StateBadge({ state, size = "md" }: { state: ExperimentState | TrialState; size?: "sm" | "md" | "lg" }) {
  return (
    <span className={classes.state} data-tone={TONE[state]} data-size={size}>
      {state}
    </span>
  );
}
