/** The columns of the trial table: what they show, and how they sort. */

import type { Column as TableColumn } from "@tanstack/react-table";
import type { Experiment, Trial } from "../../api/types";
import { asNumber } from "../../api/exact";
import type { Expected } from "../../curves/expected";
import { config, counted, decimals, paramName, title, type Labels } from "../../format";
import { own } from "../../own";

/** The column of the fronts by which trials are ranked if there are several objectives; 1 is the Pareto front. */
export const FRONT = "front";
/** The column of the expected values of configurations, by which these are ranked after repeats. */
export const EXPECTED = "expected";
/** The column of narrow screens with the whole configuration and the reason of the state, in a few lines. */
export const BRIEF = "brief";

/** The maximum number of letters of a column's name. */
export const MOST_IN_HEAD = 48;

export interface Column {
  id: string;
  label: string;
  numeric: boolean;
  value: (trial: Trial) => unknown;
  /** For reported values: the maximum number of digits after the point, with which the points are kept in line. */
  decimals?: number;
  /** Returns whether a trial comes after all others in the order of this column. */
  outside?: (trial: Trial) => boolean;
  /** For whole configurations: the labels that the indices of choices stand for. */
  labels?: Labels;
  /** A tooltip that explains the column. */
  hint?: string;
}

/** The tooltip of a parameter's column if trials change their parameters. */
const LAST_PARAM =
  "The current value, or the last one. The search changes this parameter while a trial trains; the trial's page has all its values.";

export const RAN_FOR =
  "The training time, summed over the trial's segments, each from the start of the training to the last report. Starting, waiting and pauses do not count. In the timeline, a run ends a little later, when its processes have exited.";

/** Four significant digits: more would only be noise. */
export function rounded(value: number | null): number | null {
  return value === null ? null : Number(value.toPrecision(4));
}

const STATE_ORDER = ["running", "pending", "paused", "completed", "stopped", "failed", "cancelled"];

/**
 * Fixed columns, then one for each parameter that any trial has (conditional ones are empty elsewhere). `changing`: trials change
 * their parameters while they train.
 */
export function columnsOf(
  trials: readonly Trial[],
  metric: string,
  timeAttr: string,
  objectives: Experiment["objectives"] = [],
  scope: Experiment["scope"] = "all",
  narrow = false,
  labels: Labels = {},
  expected: Expected | null = null,
  fronts: ReadonlyMap<number, number> | null = null,
  changing = false,
): Column[] {
  const most = (value: (trial: Trial) => number | null | undefined) =>
    trials.reduce((digits, trial) => Math.max(digits, decimals(value(trial))), 0);
  const params = new Set<string>();
  const numeric = new Map<string, boolean>();
  for (const trial of trials) {
    for (const [name, value] of Object.entries(trial.params)) {
      params.add(name);
      if (value !== null) numeric.set(name, (numeric.get(name) ?? true) && typeof asNumber(value) === "number");
    }
  }
  const best: Column = {
    id: "best",
    label: title(counted({ metric, scope })),
    numeric: true,
    value: (trial) => trial.best_value,
    decimals: most((trial) => trial.best_value),
  };
  const repeats: Column[] = trials.some((trial) => typeof trial.repeat_of === "number")
    ? [
        {
          id: "repeat_of",
          label: "Repeats trial",
          numeric: true,
          value: (trial) => trial.repeat_of ?? undefined, // an empty cell
        },
      ]
    : [];
  return [
    { id: "number", label: "Trial", numeric: true, value: (trial) => trial.number },
    { id: "state", label: "State", numeric: false, value: (trial) => STATE_ORDER.indexOf(trial.state) },
    ...(narrow ? [] : repeats),
    ...(fronts
      ? [
          {
            id: FRONT,
            label: "Front",
            numeric: true,
            value: (trial: Trial) => fronts.get(trial.number) ?? null,
          },
        ]
      : []),
    ...(expected
      ? [
          {
            id: EXPECTED,
            label: `Expected ${metric}`,
            numeric: true,
            value: (trial: Trial) => expected.value(trial),
            decimals: most((trial) => rounded(expected.value(trial))),
            outside: expected.dropped,
          },
        ]
      : []),
    ...(narrow && expected ? [] : [best]),
    ...(trials.some((trial) => trial.feasible !== null)
      ? [
          {
            id: "feasible",
            label: "Feasible",
            numeric: false,
            value: (trial: Trial) => (trial.feasible === null ? null : trial.feasible ? "yes" : "no"),
          },
        ]
      : []),
    ...(narrow
      ? [
          {
            id: BRIEF,
            label: changing ? "Last configuration, why" : "Configuration, why",
            numeric: false,
            value: (trial: Trial) => config(trial.params, labels),
            labels,
          },
          // After the configuration, so that the configuration is visible without scrolling.
          ...(expected ? [best] : []),
          ...repeats,
        ]
      : []),
    // The front is made of last values, so the columns of the other objectives have last values, too. The first
    // objective gets a column of last values only if they differ from its best values.
    ...(trials.some((trial) => trial.last_value !== trial.best_value)
      ? [
          {
            id: "last",
            label: `Last ${metric}`,
            numeric: true,
            value: (trial: Trial) => trial.last_value,
            decimals: most((trial) => trial.last_value),
          },
          {
            id: "best_iteration",
            label: "Best at",
            numeric: true,
            value: (trial: Trial) => trial.best_iteration,
          },
        ]
      : []),
    ...objectives.slice(1).map(({ metric: name }): Column => ({
      id: `metric:${name}`,
      label: `Last ${name}`,
      numeric: true,
      value: (trial) => own(trial.last, name),
      decimals: most((trial) => own(trial.last, name)),
    })),
    {
      id: "iteration",
      label: timeAttr === "training_iteration" ? "Iteration" : "Reports",
      numeric: true,
      value: (trial) => trial.iteration,
    },
    ...[...params].map((name): Column => ({
      id: `param:${name}`,
      label: changing ? `Last ${paramName(name, labels)}` : paramName(name, labels),
      ...(changing && { hint: LAST_PARAM }),
      numeric: numeric.get(name) ?? false,
      value: (trial) => own(trial.params, name),
    })),
    { id: "running_s", label: "Ran for", hint: RAN_FOR, numeric: true, value: (trial) => trial.running_s },
    { id: "reason", label: "Why", numeric: false, value: (trial) => trial.reason },
  ];
}

/** Return the service's name of a column that it can sort by; null if it cannot. */
export function serverColumn(id: string): string | null {
  if (id.startsWith("param:")) return `params.${id.slice("param:".length)}`;
  if (id.startsWith("metric:")) return `last.${id.slice("metric:".length)}`;
  const names: Record<string, string> = { best: "best_value", last: "last_value", [EXPECTED]: "expected_value" };
  return id === "feasible" || id === BRIEF ? null : (names[id] ?? id);
}

export interface Sort {
  column: string;
  descending: boolean;
}

/** Return the trials in order. Those without a value come last in either direction; ties are ordered by number. */
export function sortTrials(trials: readonly Trial[], columns: readonly Column[], sort: Sort): Trial[] {
  const column = columns.find((one) => one.id === sort.column) ?? columns[0]!;
  const sign = sort.descending ? -1 : 1;
  // Of the results, those within the constraints come first: the first row is then the best trial.
  const judges = column.id === "best" || column.id === EXPECTED;
  const outside = (trial: Trial) => Number(judges && (trial.feasible === false || (column.outside?.(trial) ?? false)));
  const keyed = trials.map((trial) => ({ trial, key: column.value(trial) ?? null }));
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null)
      return Number(a.key === null) - Number(b.key === null) || a.trial.number - b.trial.number;
    return outside(a.trial) - outside(b.trial) || sign * compare(a.key, b.key) || a.trial.number - b.trial.number;
  });
  return keyed.map(({ trial }) => trial);
}

function isNumber(value: unknown): value is number | bigint {
  return typeof asNumber(value) === "number";
}

function compare(a: unknown, b: unknown): number {
  if (isNumber(a) && isNumber(b)) return a < b ? -1 : a > b ? 1 : 0;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

/** Return the column that a column of the table library draws. */
export function metaOf(column: TableColumn<Trial>): Column {
  return column.columnDef.meta as Column;
}

export function isParam({ id }: Column): boolean {
  return id.startsWith("param:");
}
