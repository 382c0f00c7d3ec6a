import { Anchor, Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Fragment } from "react";
import { api } from "../../api/client";
import { NEIGHBORS } from "../../api/sizes";
import type { Experiment, Neighbors as Found, TrialWithSegments } from "../../api/types";
import { counted, metric, param, paramName, plural, readable, title } from "../../format";
import { hasEnded } from "../../live/states";
import { Breakable } from "../common/Breakable";
import { ProblemBox } from "../common/Problem";
import { StateBadge } from "../common/StateBadge";
import classes from "./TrialDetails.module.css";

const REFRESH_MS = 10_000;

interface NeighborsProps {
  trial: TrialWithSegments;
  experiment: Experiment;
  onSelect: (number: number) => void;
}

/**
 * Show the trials with the most similar configurations and their results, to tell a good region of the space from luck.
 */
export function Neighbors({ trial, experiment, onSelect }: NeighborsProps) {
  const query = useQuery({
    queryKey: ["trial", trial.id, "neighbors"],
    queryFn: ({ signal }) => api.neighbors(trial.id, NEIGHBORS, signal),
    refetchInterval: hasEnded(trial.state) ? false : REFRESH_MS,
  });
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="list of neighbors" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={160} />;
  const { items, left_out } = query.data;
  if (items.length === 0) return <p className={classes.none}>There is no other trial to compare it with.</p>;
  return (
    <>
      <p className={classes.dimmed}>{summary(trial, items, experiment)}</p>
      <div className={`${classes.scroll} sideways`} tabIndex={0} role="region" aria-label="Neighbors">
        <table className={classes.table} aria-label="Neighbors">
          <thead>
            <tr>
              <th scope="col">Trial</th>
              <th
                scope="col"
                title="In the unit cube of the space: 0 % is the same configuration, 100 % the opposite corner"
              >
                Distance
              </th>
              <th scope="col">{title(counted(experiment))}</th>
              <th scope="col">Iterations</th>
              <th scope="col">What differs there</th>
            </tr>
          </thead>
          <tbody>
            {items.map((one) => (
              <tr key={one.trial_id}>
                <td>
                  <Anchor
                    component="button"
                    type="button"
                    size="sm"
                    miw={26}
                    ta="left"
                    onClick={() => onSelect(one.trial_number)}
                  >
                    {one.trial_number}
                  </Anchor>{" "}
                  <StateBadge state={one.state} />
                </td>
                <td>{percent(one.distance)}</td>
                <td>
                  <span className={classes.value}>{metric(one.best_value)}</span>
                  <Gap value={one.best_value} own={trial.best_value} />
                </td>
                <td>{one.iteration}</td>
                <td>
                  <Changes of={one.changes} labels={experiment.labels} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p className={classes.dimmed}>
        Distance: 0 % is the same configuration, 100 % the opposite corner of the search space.
      </p>
      {left_out > 0 && (
        <p className={classes.dimmed}>
          {plural(left_out.toLocaleString("en"), "trial")} {left_out === 1 ? "was" : "were"} not compared.
        </p>
      )}
    </>
  );
}

/** "Its 6 nearest neighbors reached 0.81 to 0.95; this trial, with 0.93, is better than 4 of them." */
export function summary(
  trial: Pick<TrialWithSegments, "best_value" | "iteration">,
  items: Found["items"],
  experiment: Pick<Experiment, "mode" | "metric" | "scope">,
): string {
  const values = items.flatMap(({ best_value }) => (best_value === null ? [] : [best_value]));
  if (values.length === 0) return "None of its nearest neighbors has a result yet.";
  const range = `${metric(Math.min(...values))} to ${metric(Math.max(...values))}`;
  const reached = values.length === 1 ? metric(values[0]) : range;
  const own = trial.best_value;
  const { mode } = experiment;
  const name = counted(experiment);
  const who = values.length === 1 ? "Its nearest neighbor with a result" : `Its ${values.length} nearest neighbors`;
  if (own === null) return `${who} reached a ${name} of ${reached}; this trial has no result yet.`;
  const beaten = values.filter((value) => (mode === "max" ? own > value : own < value)).length;
  const words = beaten === values.length ? "all" : beaten === 0 ? "none" : String(beaten);
  const shorter = items.filter((one) => one.best_value !== null && one.iteration < trial.iteration).length;
  const caution =
    shorter === 0
      ? ""
      : shorter === values.length
        ? " They were trained for fewer iterations."
        : ` ${shorter} of them ${shorter === 1 ? "was" : "were"} trained for fewer iterations.`;
  return `${who} reached a ${name} of ${reached}; this trial, with ${metric(own)}, is better than ${words} of them.${caution}`;
}

function percent(distance: number): string {
  const value = 100 * distance;
  return `${value > 0 && value < 10 ? value.toPrecision(2) : Math.round(value)} %`;
}

function Gap({ value, own }: { value: number | null; own: number | null }) {
  if (value === null || own === null || value === own) return null;
  const difference = value - own;
  const words = `(${difference > 0 ? "+" : "−"}${Number(Math.abs(difference).toPrecision(3))})`;
  return (
    <>
      {" "}
      <span className={classes.value}>{words}</span>
    </>
  );
}

function Changes({ of, labels }: { of: Found["items"][number]["changes"]; labels: Experiment["labels"] }) {
  const other = Object.fromEntries(Object.entries(of).map(([name, { after }]) => [name, after]));
  const words = Object.entries(readable(other, labels)).map(
    ([name, value]) => `${paramName(name, labels)}=${other[name] === null ? "not present" : param(value)}`,
  );
  if (words.length === 0) return "nothing";
  return words.map((one, i) => (
    <Fragment key={i}>
      {i > 0 && ", "}
      <Breakable name={one} />
    </Fragment>
  ));
}
