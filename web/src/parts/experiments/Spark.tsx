import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import type { BestSoFar, Experiment } from "../../api/types";
import { LINE_OF_FIRST_RUNS, metric as written } from "../../format";
import { keys } from "../../live/keys";
import { useHypervolume } from "../../live/useHypervolume";
import classes from "../common/parts.module.css";

const [WIDTH, HEIGHT] = [90, 22];

/** A description of the axes that all these lines have. */
export const SPARK_AXES =
  "The horizontal axis is the time for which the search ran. Larger values are higher. Each line has a scale of its own.";

interface SparkProps {
  id: string;
  label: string;
  value: number | null;
  /** Configurations were evaluated again, so that the best value is a mean. */
  repeated: boolean;
  /** The seconds for which the experiment has run. */
  ran: number | null;
}

/** Show the best value over time as a small line. It is read again when there is a new best value. */
export function Spark({ id, label, value, repeated, ran }: SparkProps) {
  const { data } = useQuery({
    queryKey: [...keys.experiment(id), "spark", value],
    queryFn: ({ signal }) => api.bestSoFar(id, {}, signal),
    enabled: value !== null,
    staleTime: Infinity,
    placeholderData: (old) => old,
  });
  return <Line line={data} ran={ran} label={label} more={repeated ? `${LINE_OF_FIRST_RUNS} ` : ""} />;
}

/** Show the hypervolume of several objectives over time as a small line. */
export function FrontSpark({ experiment, ran }: { experiment: Experiment; ran: number | null }) {
  const growth = useHypervolume(experiment);
  return <Line line={growth} ran={ran} label="Hypervolume" more="It counts the trials that have ended. " />;
}

/** Say how many trials are on the Pareto front. */
export function FrontCount({ experiment, className }: { experiment: Experiment; className?: string | undefined }) {
  const front = useHypervolume(experiment)?.front ?? 0;
  return (
    front > 0 && (
      <span className={className}>
        front of {front} {front === 1 ? "trial" : "trials"}
      </span>
    )
  );
}

interface LineProps {
  line: BestSoFar | undefined;
  ran: number | null;
  label: string;
  more: string;
}

function Line({ line: data, ran, label, more }: LineProps) {
  if (!data || data.x.length === 0) return null;
  const words = `${label} over time, from ${written(data.y[0])} to ${written(data.y[data.y.length - 1])}. ${more}${SPARK_AXES}`;
  return (
    <svg
      className={classes.spark}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={words}
    >
      <title>{words}</title>
      <path d={steps(data.x, data.y, ran ?? 0, WIDTH, HEIGHT)} />
    </svg>
  );
}

/** Steps from the first value to the right edge, which is at `until`; the last value holds until there. */
export function steps(
  x: readonly number[],
  y: readonly number[],
  until: number,
  width: number,
  height: number,
): string {
  const [low, high] = [Math.min(...y), Math.max(...y)];
  const end = Math.max(until, x[x.length - 1]!) || 1;
  const across = (value: number) => ((value / end) * width).toFixed(1);
  const down = (value: number) =>
    high > low ? height - 2 - ((value - low) / (high - low)) * (height - 4) : height / 2;
  const parts = x.map((at, i) =>
    i === 0 ? `M${across(at)} ${down(y[0]!).toFixed(1)}` : `H${across(at)}V${down(y[i]!).toFixed(1)}`,
  );
  return `${parts.join("")}H${width}`;
}
