import type { Trial } from "../../api/types";
import { isFinished } from "../../charts/scatter";
import classes from "./FinishedLegend.module.css";

interface FinishedLegendProps {
  trials: readonly Pick<Trial, "state" | "best_value">[];
  /** The chart has a heat map. */
  heat?: boolean;
}

/** Tell which points are trials that trained to their end; nothing if all of them did. */
export function FinishedLegend({ trials, heat = false }: FinishedLegendProps) {
  const shown = trials.filter((one) => one.best_value !== null);
  const finished = shown.filter(isFinished).length;
  if (finished === shown.length) return null;
  return (
    <p className={classes.legend}>
      <span>
        <i data-finished aria-hidden /> {finished} finished
      </span>
      <span>
        <i aria-hidden /> {shown.length - finished} stopped early or still training: values of fewer iterations
      </span>
      {heat && <span>pale areas: few finished trials nearby</span>}
    </p>
  );
}
