import type { Trial, TrialState } from "../../api/types";
import { isFinished } from "../../charts/scatter";
import classes from "./FinishedLegend.module.css";

interface FinishedLegendProps {
  trials: readonly Pick<Trial, "state" | "best_value" | "feasible">[];
  /** True if the chart has a heat map. */
  heat?: boolean;
  /** False if the chart draws all trials alike, as lines. */
  symbols?: boolean;
}

/** The states of trials that have not trained to their end, in the words of the counts at the top of the page. */
const OTHERS: readonly TrialState[] = ["stopped", "failed", "cancelled", "running", "paused", "pending"];

/**
 * Explain which points are trials that trained to their end within the constraints. Show nothing if all did. Trials
 * without a value have no point.
 */
export function FinishedLegend({ trials, heat = false, symbols = true }: FinishedLegendProps) {
  const shown = trials.filter((one) => one.best_value !== null);
  const outside = shown.filter((one) => one.feasible === false).length;
  const inside = shown.filter((one) => one.feasible !== false);
  const finished = inside.filter(isFinished).length;
  if (finished === shown.length) return null;
  const others = OTHERS.flatMap((state) => {
    const count = inside.filter((one) => one.state === state).length;
    return count > 0 ? [`${count} ${state}`] : [];
  });
  const without = trials.length - shown.length;
  return (
    <p className={classes.legend}>
      <span>
        {symbols && <i data-finished aria-hidden />} {finished} completed
      </span>
      {others.length > 0 && (
        <span>
          {symbols && <i aria-hidden />} {others.join(", ")}: not trained to the end
        </span>
      )}
      {outside > 0 && (
        <span>
          {symbols && "× "}
          {outside} outside the constraints
        </span>
      )}
      {without > 0 && (
        <span>
          {without} {without === 1 ? "trial has" : "trials have"} no result
        </span>
      )}
      {heat && <span>pale areas: few completed trials nearby</span>}
    </p>
  );
}
