import type { Sample } from "../../live/changes";
import classes from "./parts.module.css";

/** Say that a chart shows only a sample of the trials. Show nothing if it shows all. */
export function SampleNote({ sample }: { sample: Pick<Sample, "items" | "total" | "complete"> | undefined }) {
  if (!sample || sample.complete) return null;
  const [shown, total] = [sample.items.length, sample.total].map((count) => count.toLocaleString("en"));
  return (
    <p className={classes.sample} role="note">
      Shows {shown} of {total} trials: the best half, and others spread evenly over the ranks behind them. The table has
      all.
    </p>
  );
}
