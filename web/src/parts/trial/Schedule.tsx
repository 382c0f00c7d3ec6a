import { Anchor } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment, Lineage, Params, Segment } from "../../api/types";
import { download } from "../../charts/save";
import { config, param, paramName, readable } from "../../format";
import { isPopulationBased } from "../../live/states";
import { Facts } from "../common/Panel";
import classes from "../common/parts.module.css";
import { own } from "../../own";

type Labels = Experiment["labels"];

/** Return true if trials change parameters while they train. */
export function changesParams(experiment: Pick<Experiment, "scheduler" | "resolved">): boolean {
  const { scheduler, resolved } = experiment;
  return isPopulationBased(experiment) || (resolved?.scheduler ?? scheduler)["type"] === "pbt_replay";
}

/** Return true if a trial with these segments may have trained with several configurations: they began with other weights. */
export function mayHaveChanged(segments: readonly Pick<Segment, "cause">[]): boolean {
  return segments.some(({ cause }) => cause === "exploit" || cause === "fork");
}

export function lineageQuery(id: string, at: "newest" | "best", version: unknown) {
  return {
    queryKey: ["trial", id, "lineage", at, version] as const,
    queryFn: ({ signal }: { signal: AbortSignal }) => api.lineage(id, signal, at),
  };
}

/**
 * Return the lineage of a trial's newest weights, or of those with its best value, if several configurations are part of it; else null.
 * `version` changes if the lineage may have changed. Without `wanted`, nothing is asked for.
 */
export function useChanged(id: string, at: "newest" | "best", version: unknown, wanted: boolean): Lineage | null {
  const { data } = useQuery({ ...lineageQuery(id, at, version), enabled: wanted, placeholderData: keepPreviousData });
  return wanted && data?.trial_id === id && data.schedule.length > 1 ? data : null;
}

/** Return the value with which the training began and the last one, for each parameter: "0.1 → 0.02", or "0.1" if they are equal. */
export function overTraining(params: Params, { schedule }: Pick<Lineage, "schedule">, labels: Labels): Params {
  const first = readable(schedule[0]?.params ?? params, labels);
  const last = readable(params, labels);
  const names = [...Object.keys(last), ...Object.keys(first).filter((name) => !Object.hasOwn(last, name))];
  return Object.fromEntries(
    names.map((name) => {
      const words = (value: unknown) => (value === undefined ? "not present" : param(value));
      const varied = schedule.some(
        (entry) => JSON.stringify(own(entry.params, name)) !== JSON.stringify(own(params, name)),
      );
      return [name, varied ? `${words(own(first, name))} → ${words(own(last, name))}` : own(last, name)];
    }),
  );
}

interface ParametersProps {
  params: Params;
  labels: Labels;
  /** The lineage, if the parameters changed during the training. */
  changed: Lineage | null;
  /** Where the last of the values applied: "iteration 12". */
  until: string;
  /** If given, the list scrolls, and this is its name. */
  scroll?: string | undefined;
  /** A link to more about the changes. */
  more?: ReactNode;
}

/** A configuration. If it changed during the training, show its first and its last values, and the schedule between them. */
export function Parameters({ params, labels, changed, until, scroll, more }: ParametersProps) {
  const values = changed ? overTraining(params, changed, labels) : readable(params, labels);
  return (
    <>
      <Facts
        scroll={scroll}
        items={Object.entries(values).map(([name, value]) => [
          paramName(name, labels),
          <span title={changed ? undefined : JSON.stringify(value)}>{param(value)}</span>,
        ])}
      />
      {changed && (
        <div className={classes.changed} role="note">
          <p>
            <b>These parameters changed during training.</b> An arrow leads from the first value to the one at {until}.
            Training with the last values alone may not reach this result. {more}
          </p>
          <details>
            <summary>Schedule of {changed.schedule.length} configurations</summary>
            <Schedule found={changed} labels={labels} />
          </details>
        </div>
      )}
    </>
  );
}

/** The configurations in order, to read and to download. */
export function Schedule({ found, labels }: { found: Lineage; labels: Labels }) {
  return (
    <>
      <Facts
        items={found.schedule.map((entry) => [
          entry.iteration === 0 ? "from the start" : `after iteration ${entry.iteration}`,
          config(readable(entry.params, labels), labels),
        ])}
      />
      <Anchor component="button" type="button" size="xs" onClick={() => save(found)}>
        Download the schedule as JSON
      </Anchor>
    </>
  );
}

function save({ trial_number, schedule }: Lineage): void {
  const text = `${JSON.stringify(schedule, null, 2)}\n`;
  download(`schedule_of_trial_${trial_number}.json`, new Blob([text], { type: "application/json" }));
}
