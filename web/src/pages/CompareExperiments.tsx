import { Skeleton } from "@mantine/core";
import { useQueries, type QueryState } from "@tanstack/react-query";
import { useMemo } from "react";
import { api, isMissing } from "../api/client";
import { serviceTime } from "../api/clock";
import type { BestOverTime, Experiment, Lineage, Series } from "../api/types";
import { bestCall } from "../charts/copies";
import { comparedBestRows } from "../charts/save";
import type { Across } from "../curves/across";
import { OverlayChart } from "../curves/OverlayChart";
import { duration, leading, longestOf, metric as written, named, param, ran, readable } from "../format";
import { keys } from "../live/keys";
import { experimentEnded } from "../live/states";
import { Panel } from "../parts/common/Panel";
import { ProblemBox } from "../parts/common/Problem";
import { SaveMenu } from "../parts/common/SaveMenu";
import { Select } from "../parts/common/Select";
import { AxisControls, LinearOrLog, MetricSelect } from "../parts/curves/controls";
import { domainsOf } from "../parts/setup/Setup";
import { useKeys } from "../parts/common/useKeys";
import { lineageQuery, overTraining } from "../parts/trial/Schedule";
import {
  ARROWS,
  beyondWords,
  bestOf,
  experimentsIn,
  lineagesOf,
  rowsOf,
  type ComparedRow,
  verdictWords,
} from "./compare";
import { LineNames } from "./LineNames";
import { ComparedTable } from "./ComparedTable";
import classes from "./ComparePage.module.css";
import type { Address } from "./useAddress";

const REFRESH_MS = 5000;
const COSTS = [
  { value: "trial_time", label: "training of all trials" },
  { value: "time", label: "running time" },
];

/** Compare two to ten whole experiments: their best values so far over the cost, and their differences. */
export function CompareExperiments({ ids, address }: { ids: readonly string[]; address: Address }) {
  const found = useQueries({
    queries: ids.map((id) => ({
      queryKey: keys.experiment(id),
      queryFn: ({ signal }: { signal: AbortSignal }) => api.experiment(id, signal),
      refetchInterval: ({ state }: { state: QueryState<Experiment> }) => (isMissing(state.error) ? false : REFRESH_MS),
    })),
  });
  // An experiment that is shown may be deleted by somebody else.
  const brokenAt = found.findIndex((query) => query.isError && (!query.data || isMissing(query.error)));
  const broken = found[brokenAt];
  if (broken)
    return (
      <ProblemBox
        error={broken.error}
        what="experiment"
        shown={broken.data?.name}
        retry={() => found.forEach((query) => void query.refetch())}
        leaveOut={() => leaveOut(address, ids[brokenAt]!)}
      />
    );
  const experiments = found.flatMap((query) => query.data ?? []);
  if (experiments.length < ids.length) return <Skeleton height={420} />;
  return <Compared experiments={experiments} address={address} />;
}

function leaveOut(address: Address, id: string): void {
  address.set((get) => ({
    experiments: experimentsIn(get("experiments"))
      .filter((one) => one !== id)
      .join(","),
  }));
}

function Compared({ experiments, address }: { experiments: readonly Experiment[]; address: Address }) {
  const log = address.get("y") === "log";
  const cost = address.get("x") === "time" ? "time" : "trial_time";
  const across: Across = { x: cost, x_metric: null };
  const known = [...new Set(experiments.flatMap((one) => one.objectives.map(({ metric }) => metric)))];
  const asked = address.get("metric");
  const metric = asked !== null && known.includes(asked) ? asked : experiments[0]!.metric;
  const bests = useQueries({
    queries: experiments.map((one) => ({
      queryKey: [...keys.experiment(one.id), "best-so-far", metric, cost],
      queryFn: ({ signal }: { signal: AbortSignal }) => api.bestSoFar(one.id, { metric, x: cost }, signal),
      refetchInterval: experimentEnded(one.state) ? (false as const) : REFRESH_MS,
    })),
    combine: (queries) => queries.map(({ data }) => data),
  });
  useKeys({ l: () => address.set({ y: log ? null : "log" }) });
  const names = useMemo(() => namesOf(experiments), [experiments]);
  const series = useMemo(() => experiments.map((one, i): Series => stepsOf(bests[i], i, one)), [experiments, bests]);
  const changed = useQueries({
    queries: experiments.map(({ best: top }) => ({
      ...lineageQuery(top?.trial_id ?? "", "best", top?.iteration),
      enabled: top !== null,
    })),
    combine: lineagesOf,
  });
  const rows = useMemo(() => experimentRows(experiments, changed), [experiments, changed]);
  const best = useMemo(() => new Map(rows.map((row) => [row, bestColumn(row, experiments)])), [rows, experiments]);
  const without = (id: string) => leaveOut(address, id);
  const beyond = beyondWords("experiments", experimentsIn(address.get("experiments")).length);
  return (
    <>
      {beyond && <p className={classes.caution}>{beyond}</p>}
      <ExperimentVerdict experiments={experiments} names={names} metric={metric} />
      <Panel
        title={
          <MetricSelect
            metrics={known}
            value={metric}
            width={180}
            alone={`${leading({ metric, scope: experiments.every((one) => one.scope === "last") ? "last" : "all" })} so far`}
            onChange={(value) => address.set({ metric: value })}
          />
        }
        aside={
          <div className={classes.controls}>
            <AxisControls name="x">
              <Select
                size="xs"
                w={172}
                aria-label="Horizontal axis"
                allowDeselect={false}
                data={COSTS}
                value={cost}
                onChange={(value) => address.set({ x: value === "time" ? value : null })}
              />
            </AxisControls>
            <AxisControls name="y">
              <LinearOrLog label="Vertical axis" log={log} onChange={(on) => address.set({ y: on ? "log" : null })} />
            </AxisControls>
            <SaveMenu
              name={`compared best ${metric}`}
              rows={() => comparedBestRows(names, bests, metric, cost)}
              call={bestCall(
                experiments.map((one) => one.id),
                metric,
                cost,
              )}
            />
          </div>
        }
      >
        {series.some((one) => one.segments.length > 0) ? (
          <>
            <OverlayChart
              series={series}
              names={names}
              metric={metric}
              across={across}
              xLabel={cost === "time" ? "time that the experiment has run" : "training time of all trials together"}
              log={log}
              height={340}
            />
            <LineNames series={series} names={names} />
          </>
        ) : (
          <div className={classes.empty}>None of these experiments has a value of {metric} yet.</div>
        )}
        <p className={classes.words}>
          Each line is the best value that an experiment had reached by then.{" "}
          {cost === "trial_time"
            ? "The axis adds up the running time of all trials, so experiments with many trials at once are not favored."
            : "Experiments that run more trials at once get further in the same time."}
        </p>
      </Panel>
      <ComparedTable
        columns={experiments.map((one, i) => ({
          id: one.id,
          name: names[i]!,
          to: `/experiments/${one.id}`,
          state: one.state,
          onRemove: () => without(one.id),
        }))}
        rows={rows}
        best={best}
        address={address}
        words={(row, value) => cellWords(row, value)}
        note={changed.size > 0 ? ARROWS : null}
      />
    </>
  );
}

/** The names of experiments. If several have the same name, the end of the id is appended. */
export function namesOf(experiments: readonly Pick<Experiment, "id" | "name">[]): string[] {
  return experiments.map(({ id, name }) =>
    experiments.filter((other) => other.name === name).length > 1 ? `${name} (${id.slice(-4)})` : name,
  );
}

/** The best value so far, as steps. Each holds until the next improvement, and the last one until the end. */
export function stepsOf(
  best: BestOverTime | undefined,
  number: number,
  { id, state }: Pick<Experiment, "id" | "state">,
): Series {
  const [x, y]: [number[], number[]] = [[], []];
  best?.x.forEach((at, i) => {
    const value = best.y[i];
    if (value === null || value === undefined) return;
    if (y.length > 0) {
      x.push(at);
      y.push(y[y.length - 1]!);
    }
    x.push(at);
    y.push(value);
  });
  if (best && y.length > 0) {
    x.push(Math.max(best.until, x[x.length - 1]!));
    y.push(y[y.length - 1]!);
  }
  return {
    trial_id: id,
    number,
    state: state === "running" ? "running" : "completed",
    best_value: y[y.length - 1] ?? null,
    segments: y.length > 0 ? [{ ordinal: 1, cause: "start", last_iteration: 0, x, y }] : [],
  };
}

function experimentRows(experiments: readonly Experiment[], changed: ReadonlyMap<string, Lineage>): ComparedRow[] {
  return [
    ...rowsOf(
      "Results",
      experiments.map((one) => ({
        ...Object.fromEntries(
          one.objectives.map(({ metric }, i) => [
            bestName(one, metric),
            one.best?.objectives.find((other) => other.metric === metric)?.value ??
              (i === 0 ? (one.best?.value ?? null) : null),
          ]),
        ),
        trials: one.trials,
        completed: one.counts.completed,
        stopped: one.counts.stopped,
        failed: one.counts.failed,
        "ran for": ran(one, serviceTime()),
        "GPU hours": one.gpu_hours,
        "GPU hours saved": one.gpu_hours_saved,
        why: one.reason || null,
      })),
    ),
    ...rowsOf(
      "Best configuration",
      experiments.map(({ best, labels }) => {
        if (!best) return {};
        const lineage = changed.get(best.trial_id);
        return named(lineage ? overTraining(best.params, lineage, labels) : readable(best.params, labels), labels);
      }),
    ),
    ...rowsOf(
      "Space",
      experiments.map((one) => Object.fromEntries(domainsOf(one.space))),
    ),
    ...rowsOf(
      "Set-up",
      experiments.map((one) => ({
        method: one.method,
        objectives: one.objectives.map(({ metric, mode }) => `${mode} ${metric}`).join(", "),
        "trials at most": one.num_samples,
        "longest trial": longestOf(one),
        seed: one.seed,
        workers: one.scaling.num_workers,
        entrypoint: one.entrypoint,
        project: one.project,
        "learned from": one.learned_from.join(", ") || null,
        ...section("scheduler", one.resolved?.scheduler ?? one.scheduler),
        ...section("search", one.resolved?.search ?? one.search),
      })),
    ),
  ];
}

/** The name for the value of the best trial within a list. */
function bestName({ scope }: Experiment, metric: string): string {
  return scope === "last" ? `best last ${metric}` : `best ${metric}`;
}

/** The options of a section of the spec, each with the section's name before its own. */
function section(name: string, options: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(options).map(([key, value]) => [`${name}: ${key}`, value]));
}

function bestColumn(row: ComparedRow, experiments: readonly Experiment[]): readonly number[] {
  const modes = new Set(
    experiments.flatMap((one) =>
      one.objectives.flatMap(({ metric, mode }) => (row.name === bestName(one, metric) ? [mode] : [])),
    ),
  );
  return row.group === "Results" && modes.size === 1 ? bestOf(row.values, [...modes][0]!) : [];
}

/** Say first which experiment found the best value, and what makes the experiments hard to compare. */
export function ExperimentVerdict({
  experiments,
  names,
  metric,
}: {
  experiments: readonly Experiment[];
  names: readonly string[];
  metric: string;
}) {
  const valueIn = (one: Experiment) =>
    one.best?.objectives.find((other) => other.metric === metric)?.value ??
    (one.metric === metric ? (one.best?.value ?? null) : null);
  const modes = new Set(
    experiments.flatMap((one) => one.objectives.flatMap((each) => (each.metric === metric ? [each.mode] : []))),
  );
  const [mode] = modes;
  const verdict =
    mode && modes.size === 1
      ? verdictWords(
          `best ${metric}`,
          mode,
          experiments.map((one, i) => ({ name: names[i]!, value: valueIn(one) })),
        )
      : null;
  const without = names.filter((_, i) => !experiments[i]!.objectives.some((one) => one.metric === metric));
  const open = names.filter((_, i) => !experimentEnded(experiments[i]!.state));
  const longest = new Set(experiments.map(longestOf));
  return (
    <div>
      {verdict && (
        <p className={classes.verdict}>
          <b>{verdict.first}</b> {verdict.rest}
        </p>
      )}
      {modes.size > 1 && (
        <p className={classes.caution}>
          Some of these experiments minimize {metric} and others maximize it, so none of them is called the best.
        </p>
      )}
      {without.length > 0 && (
        <p className={classes.caution}>
          {metric} is not an objective of {without.join(", ")}.
        </p>
      )}
      {open.length > 0 && (
        <p className={classes.caution}>
          {open.join(", ")} {open.length === 1 ? "has" : "have"} not ended, so {open.length === 1 ? "its" : "their"}{" "}
          best value may still improve.
        </p>
      )}
      {longest.size > 1 && (
        <p className={classes.caution}>
          Trials of these experiments may train for different lengths: see &quot;longest trial&quot; below.
        </p>
      )}
    </div>
  );
}

function cellWords(row: ComparedRow, value: unknown): string {
  if (row.group === "Best configuration") return value === undefined ? "not present" : param(value);
  if (value === undefined || value === null) return "–";
  if (row.name === "ran for") return duration(value as number);
  if (row.name.startsWith("GPU hours")) return (value as number).toFixed(2);
  if (row.group === "Results" && typeof value === "number") return written(value);
  return param(value);
}
