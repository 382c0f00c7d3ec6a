/** The horizontal axis of curves: its name in the address, and its label on the page. */

import type { Curves, Experiment, XAxis } from "../api/types";
import { duration, number } from "../format";
import type { Scale } from "./ticks";

/** The quantity on the axis; `x_metric` is the metric's name if `x` is "metric", and null otherwise. */
export type Across = Pick<Curves, "x" | "x_metric">;

export const STEP: Across = { x: "step", x_metric: null };

const METRIC = "metric:";
const PLAIN: readonly XAxis[] = ["step", "user_step", "trial_time", "time"];

/** "time", or "metric:epoch". Null if the text is anything else, or if there is no such metric. */
export function parseAcross(text: string | null, metrics: readonly string[]): Across | null {
  const x = PLAIN.find((one) => one === text);
  if (x) return { x, x_metric: null };
  const name = text?.startsWith(METRIC) ? text.slice(METRIC.length) : null;
  return name !== null && metrics.includes(name) ? { x: "metric", x_metric: name } : null;
}

export function formatAcross({ x, x_metric }: Across): string {
  return x === "metric" ? METRIC + x_metric : x;
}

/** The axis in a request. */
export function asQuery({ x, x_metric }: Across): { x: XAxis; x_metric?: string } {
  return x_metric === null ? { x } : { x, x_metric };
}

/** The axis on which the scheduler measures training. */
export function acrossOf(timeAttr: string): string {
  if (timeAttr === "training_iteration") return "step";
  return timeAttr === "time_total_s" ? "trial_time" : METRIC + timeAttr;
}

/** The axis that this text of an address names; else the one on which the scheduler measures training, or iterations. */
export function chosenAcross(text: string | null, experiment: Pick<Experiment, "metrics" | "time_attr">): Across {
  const { metrics, time_attr } = experiment;
  return parseAcross(text, metrics) ?? parseAcross(acrossOf(time_attr), metrics) ?? STEP;
}

/** The axis for the curves of a metric: iterations instead of the metric itself, over which each curve would be a diagonal line. */
export function acrossFor(across: Across, drawn: string): Across {
  return across.x === "metric" && across.x_metric === drawn ? STEP : across;
}

/** Return the axes that a user can choose for the curves of a metric, in groups. */
export function choices(metrics: readonly string[], drawn: string) {
  const others = metrics.filter((name) => name !== drawn);
  return [
    {
      group: "Progress",
      items: [
        { value: "step", label: "iteration" },
        { value: "user_step", label: "step" },
      ],
    },
    {
      group: "Time",
      items: [
        { value: "trial_time", label: "trial time" },
        { value: "time", label: "search time" },
      ],
    },
    ...(others.length > 0
      ? [{ group: "Metric", items: others.map((name) => ({ value: METRIC + name, label: name })) }]
      : []),
  ];
}

/** The label of the axis. */
export function labelOf({ x, x_metric }: Across): string {
  switch (x) {
    case "step":
      return "training iteration";
    case "user_step":
      return "step of the training code";
    case "trial_time":
      return "time that the trial has trained";
    case "time":
      return "time that the search has run";
    case "metric":
      return x_metric ?? "";
  }
}

/** Say where a point is, such as "iteration 9". */
export function placeWords({ x, x_metric }: Across, value: number): string {
  switch (x) {
    case "step":
      return `iteration ${value}`;
    case "user_step":
      return `step ${value}`;
    case "trial_time":
      return `after ${duration(value)} of training`;
    case "time":
      return `at ${duration(value)}`;
    case "metric":
      return `${x_metric} ${number(value)}`;
  }
}

/** The name of the axis's column in a file. */
export function columnOf({ x, x_metric }: Across): string {
  if (x === "metric") return x_metric ?? "";
  return { step: "step", user_step: "user_step", trial_time: "trial_seconds", time: "seconds" }[x];
}

/** Say why nothing of a metric can be drawn on the axis, even if trials have reported the metric; null on an axis of all reports. */
export function missingWords({ x, x_metric }: Across, drawn: string): string | null {
  if (x === "user_step") return `No report of ${drawn} has a step. Pass it with tuner.report(metrics, step=...).`;
  return x === "metric" ? `No report has both ${drawn} and ${x_metric}.` : null;
}

export function scaleOf(x: XAxis): Scale {
  switch (x) {
    case "step":
    case "user_step":
      return "count";
    case "trial_time":
    case "time":
      return "time";
    case "metric":
      return "linear";
  }
}
