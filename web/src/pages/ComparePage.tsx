import { Anchor, Skeleton } from "@mantine/core";
import { useQueries, useQuery, useQueryClient, type QueryState, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { Link } from "react-router";
import { api, isMissing } from "../api/client";
import { EVERY_POINT } from "../api/sizes";
import type { Experiment, Lineage, Series, TrialCurves, TrialWithSegments } from "../api/types";
import { Crumbs } from "../App";
import { missingWords, parseAcross, STEP } from "../curves/across";
import { OverlayChart } from "../curves/OverlayChart";
import { counted, duration, longestOf, metric as written, named, param, readable } from "../format";
import { keys } from "../live/keys";
import { hasEnded } from "../live/states";
import { dimensionsOf } from "../charts/dimensions";
import { trialCurvesCall } from "../charts/copies";
import { comparedCurvesRows } from "../charts/save";
import { Panel } from "../parts/common/Panel";
import { SaveMenu } from "../parts/common/SaveMenu";
import { ProblemBox } from "../parts/common/Problem";
import { AcrossSelect, AxisControls, LinearOrLog, MetricSelect } from "../parts/curves/controls";
import { useKeys } from "../parts/common/useKeys";
import { useTitle } from "../parts/common/useTitle";
import { lineageQuery, mayHaveChanged, overTraining } from "../parts/trial/Schedule";
import {
  ARROWS,
  beyondWords,
  bestIn,
  lineagesOf,
  parseExperiments,
  parseTrials,
  rowsOf,
  spreadOf,
  trialsIn,
  unfinishedTrials,
  verdictWords,
  widestGap,
  type ComparedRow,
} from "./compare";
import { LineNames } from "./LineNames";
import { ComparedTable } from "./ComparedTable";
import { CompareExperiments, namesOf } from "./CompareExperiments";
import classes from "./ComparePage.module.css";
import { useAddress, type Address } from "./useAddress";

const REFRESH_MS = 5000;

/**
 * Compare two to ten trials of any experiments, by their curves and their differences, or two to ten whole experiments.
 */
export default function ComparePage() {
  const address = useAddress();
  const wholes = parseExperiments(address.get("experiments"));
  if (wholes.length === 0) return <CompareTrials address={address} />;
  return <Experiments ids={wholes} address={address} />;
}

function Experiments({ ids, address }: { ids: readonly string[]; address: Address }) {
  useTitle("Compare experiments");
  return (
    <div className={classes.page}>
      <div>
        <Crumbs items={[{ label: "Experiments", to: "/experiments" }, { label: "compare" }]} />
        <h1 className={classes.title}>Compare experiments</h1>
      </div>
      <CompareExperiments ids={ids} address={address} />
    </div>
  );
}

function CompareTrials({ address }: { address: Address }) {
  useTitle("Compare trials");
  const text = address.get("trials");
  const ids = useMemo(() => parseTrials(text), [text]);
  const found = useQueries({
    queries: ids.map((id) => ({
      queryKey: keys.trial(id),
      queryFn: ({ signal }: { signal: AbortSignal }) => api.trial(id, signal),
      refetchInterval: ({ state }: { state: QueryState<TrialWithSegments> }) =>
        isMissing(state.error) || (state.data && hasEnded(state.data.state)) ? false : REFRESH_MS,
    })),
  });
  // A trial that is shown may be deleted by somebody else.
  const brokenAt = found.findIndex((query) => query.isError && (!query.data || isMissing(query.error)));
  const broken = found[brokenAt];
  const trials = found.flatMap((query) => query.data ?? []);
  const of = [...new Set(trials.map((trial) => trial.experiment_id))];
  const owner = useQuery({
    queryKey: keys.experiment(of[0] ?? ""),
    queryFn: ({ signal }) => api.experiment(of[0]!, signal),
    enabled: of.length === 1,
  });
  const client = useQueryClient();
  const nameOf = ({ number, experiment_id: id }: TrialWithSegments) => {
    const name = client.getQueryData<Experiment>(keys.experiment(id))?.name;
    return `Trial ${number}${name === undefined ? "" : ` of ${name}`}`;
  };
  const without = (id: string) =>
    address.set((get) => ({
      trials: trialsIn(get("trials"))
        .filter((one) => one !== id)
        .join(","),
    }));
  return (
    <div className={classes.page}>
      <div>
        <Crumbs
          items={[
            { label: "Experiments", to: "/experiments" },
            ...(owner.data && of.length === 1 ? [{ label: owner.data.name, to: `/experiments/${owner.data.id}` }] : []),
            { label: "compare" },
          ]}
        />
        <h1 className={classes.title}>Compare trials</h1>
      </div>
      {broken && (
        <ProblemBox
          error={broken.error}
          what="trial"
          shown={broken.data && nameOf(broken.data)}
          retry={() => found.forEach((query) => void query.refetch())}
          leaveOut={() => without(ids[brokenAt]!)}
        />
      )}
      {ids.length < 2 && (
        <Panel>
          <p className={classes.words}>
            Nothing to compare yet. Open an{" "}
            <Anchor component={Link} to="/experiments" inherit underline="always">
              experiment
            </Anchor>
            , tick two to ten trials in its table (or open one and press <kbd>x</kbd>), and press <b>Compare</b>. The
            URL of this page contains their ids. You can add trials of other experiments to it, separated by commas.
          </p>
        </Panel>
      )}
      {ids.length >= 2 && !broken && trials.length < ids.length && <Skeleton height={420} />}
      {ids.length >= 2 && !broken && trials.length === ids.length && (
        <Compared trials={trials} readAt={found.map((query) => query.dataUpdatedAt)} onRemove={without} />
      )}
    </div>
  );
}

interface ComparedProps {
  trials: readonly TrialWithSegments[];
  /** When each trial was read. */
  readAt: readonly number[];
  onRemove: (id: string) => void;
}

function Compared({ trials, readAt, onRemove }: ComparedProps) {
  const address = useAddress();
  const log = address.get("y") === "log";
  const experimentIds = [...new Set(trials.map((trial) => trial.experiment_id))];
  const { experiments, gone } = useQueries({
    queries: experimentIds.map((id) => ({
      queryKey: keys.experiment(id),
      queryFn: ({ signal }: { signal: AbortSignal }) => api.experiment(id, signal),
      // A metric may be reported later, and the experiment may be deleted.
      refetchInterval: ({ state }: { state: QueryState<Experiment> }) => (isMissing(state.error) ? false : REFRESH_MS),
    })),
    combine: foundIn,
  });
  useDeleted(gone, trials);
  const known = [...new Set([...experiments.values()].flatMap((one) => [one.metric, ...one.metrics]))];
  const first = experiments.get(trials[0]!.experiment_id);
  // The chosen metric remains the chosen one, even if none of its reports has a place on the axis.
  const asked = address.get("metric");
  const metric = asked !== null && known.includes(asked) ? asked : (first?.metric ?? "");
  const chosen = parseAcross(address.get("x"), known) ?? STEP;
  const across = chosen.x_metric === metric ? STEP : chosen;
  const curves = useQueries({
    queries: trials.map((trial, i) => ({
      queryKey: keys.trialCurves(trial.id, across),
      queryFn: ({ signal }: { signal: AbortSignal }) => api.trialCurves(trial.id, across, signal),
      // After the end of a trial, its last points are read once more.
      refetchInterval: ({ state }: { state: QueryState<TrialCurves> }) =>
        hasEnded(trial.state) && state.dataUpdatedAt > readAt[i]! ? false : REFRESH_MS,
    })),
    combine: (queries) => queries.map(({ data }) => data?.items ?? []),
  });
  useKeys({ l: () => address.set({ y: log ? null : "log" }) });

  const several = experimentIds.length > 1;
  const names = useMemo(() => {
    const owners = [...experiments.values()];
    const titles = new Map(namesOf(owners).map((name, i) => [owners[i]!.id, name]));
    return trials.map((trial) => {
      const owner = titles.get(trial.experiment_id);
      return several && owner !== undefined ? `${owner}, trial ${trial.number}` : `trial ${trial.number}`;
    });
  }, [trials, experiments, several]);
  const metrics = known.filter(
    (name) =>
      name === first?.metric || name === metric || curves.some((items) => items.some((item) => item.metric === name)),
  );
  const series = useMemo(
    () =>
      trials.map((trial, i): Series => ({
        trial_id: trial.id,
        number: i,
        state: trial.state,
        best_value: trial.best_value,
        segments: curves[i]?.find((item) => item.metric === metric)?.segments ?? [],
      })),
    [trials, curves, metric],
  );
  const save = async () => {
    const every = await Promise.all(trials.map(({ id }) => api.trialCurves(id, across, undefined, EVERY_POINT)));
    const segmentsOf = (i: number) => every[i]!.items.find((item) => item.metric === metric)?.segments ?? [];
    const whole = series.map((one, i) => ({ ...one, segments: segmentsOf(i) }));
    return comparedCurvesRows(names, whole, metric, across);
  };
  const gap = useMemo(() => widestGap(series.map((one) => one.segments)), [series]);
  const changed = useQueries({
    queries: trials.map((trial) => ({
      ...lineageQuery(trial.id, "newest", trial.segments.length),
      enabled: mayHaveChanged(trial.segments),
    })),
    combine: lineagesOf,
  });
  const rows = useMemo(() => comparedRows(trials, experiments, changed), [trials, experiments, changed]);
  const best = useMemo(
    () => new Map(rows.map((row) => [row, bestIn(row, [...experiments.values()], trials)])),
    [rows, experiments, trials],
  );
  const columns = trials.map((trial, i) => ({
    id: trial.id,
    name: names[i]!,
    to: `/trials/${trial.id}`,
    state: trial.state,
    onRemove: () => onRemove(trial.id),
  }));
  const beyond = beyondWords("trials", trialsIn(address.get("trials")).length);
  return (
    <>
      {beyond && <p className={classes.caution}>{beyond}</p>}
      <Verdict trials={trials} names={names} experiments={[...experiments.values()]} />
      <Panel
        title={
          <MetricSelect
            metrics={metrics}
            value={metric}
            width={180}
            onChange={(value) => address.set({ metric: value })}
          />
        }
        aside={
          <div className={classes.controls}>
            <AxisControls name="x">
              <AcrossSelect
                metrics={known}
                metric={metric}
                across={across}
                onChange={(value) => address.set({ x: value === "step" ? null : value })}
              />
            </AxisControls>
            <AxisControls name="y">
              <LinearOrLog label="Vertical axis" log={log} onChange={(on) => address.set({ y: on ? "log" : null })} />
            </AxisControls>
            <SaveMenu
              name={`compared ${metric}`}
              rows={save}
              call={trialCurvesCall(
                trials.map((trial) => trial.id),
                across,
              )}
            />
          </div>
        }
      >
        {series.some((one) => one.segments.length > 0) ? (
          <>
            <OverlayChart series={series} names={names} metric={metric} across={across} log={log} height={340} />
            <LineNames series={series} names={names} />
          </>
        ) : (
          <div className={classes.empty}>
            {missingWords(across, metric || "a metric") ??
              `None of these trials has reported ${metric || "a metric"} yet.`}
          </div>
        )}
        {gap && across.x === "step" && gap.high.value > gap.low.value && (
          <p className={classes.words}>
            The largest difference is at iteration {gap.x}: <b>{written(gap.high.value)}</b> ({names[gap.high.index]})
            against <b>{written(gap.low.value)}</b> ({names[gap.low.index]}).
          </p>
        )}
      </Panel>
      <ComparedTable
        columns={columns}
        rows={rows}
        best={best}
        address={address}
        words={cellWords}
        note={changed.size > 0 ? ARROWS : null}
      />
    </>
  );
}

/** The experiments that were read, and the ids of those that are no longer there, separated by commas. */
function foundIn(queries: UseQueryResult<Experiment>[]) {
  const read = queries.flatMap(({ data, error }) => (data ? [{ data, deleted: isMissing(error) }] : []));
  return {
    experiments: new Map(read.map(({ data }) => [data.id, data])),
    gone: read.flatMap(({ data, deleted }) => (deleted ? data.id : [])).join(),
  };
}

/** Read the trials of deleted experiments again. Trials that have ended are not polled, so nothing else would say that they are gone. */
function useDeleted(gone: string, trials: readonly TrialWithSegments[]): void {
  const client = useQueryClient();
  const lost = trials
    .filter((trial) => gone.split(",").includes(trial.experiment_id))
    .map(({ id }) => id)
    .join();
  useEffect(() => {
    if (lost === "") return;
    for (const id of lost.split(",")) void client.invalidateQueries({ queryKey: keys.trial(id), exact: true });
  }, [client, lost]);
}

interface VerdictProps {
  trials: readonly TrialWithSegments[];
  names: readonly string[];
  experiments: readonly Experiment[];
}

/** Say first which trial is the best one, and what makes the values hard to compare. */
export function Verdict({ trials, names, experiments }: VerdictProps) {
  const first = experiments[0];
  if (!first) return null;
  const goals = [...new Set(experiments.map(({ metric, mode }) => `${mode} ${metric}`))];
  const verdict =
    goals.length === 1
      ? verdictWords(
          counted(first),
          first.mode,
          trials.map((trial, i) => ({ name: names[i]!, value: trial.feasible === false ? null : trial.best_value })),
        )
      : null;
  const outside = names.filter((_, i) => trials[i]!.feasible === false);
  const unfinished = unfinishedTrials(trials.map(({ state, iteration }, i) => ({ name: names[i]!, state, iteration })));
  return (
    <div>
      {verdict && (
        <p className={classes.verdict}>
          <b>{verdict.first}</b> {verdict.rest}
        </p>
      )}
      {goals.length > 1 && (
        <p className={classes.caution}>
          The experiments of these trials have different objectives ({goals.join("; ")}), so none of the trials is
          called the best.
        </p>
      )}
      {goals.length === 1 && first.objectives.length > 1 && (
        <p className={classes.caution}>
          {counted(first)} is only the first of {first.objectives.length} objectives; the table marks the best value of
          each.
        </p>
      )}
      {goals.length === 1 && experiments.length > 1 && (
        <p className={classes.caution}>
          The trials belong to {experiments.length} experiments, whose training code and data may differ.
        </p>
      )}
      {outside.length > 0 && (
        <p className={classes.caution}>Outside the constraints, so not counted: {outside.join(", ")}.</p>
      )}
      {unfinished && <p className={classes.caution}>{unfinished}</p>}
    </div>
  );
}

function cellWords(row: ComparedRow, value: unknown): string {
  if (row.group === "Parameters") return value === undefined ? "not present" : param(value);
  if (value === undefined || value === null) return "–";
  if (row.name === "trained for") return duration(value as number);
  return row.group === "Results" && typeof value === "number" ? written(value) : param(value);
}

function comparedRows(
  trials: readonly TrialWithSegments[],
  experiments: ReadonlyMap<string, Experiment>,
  changed: ReadonlyMap<string, Lineage>,
): ComparedRow[] {
  const of = (trial: TrialWithSegments) => experiments.get(trial.experiment_id);
  return [
    ...rowsOf(
      "Results",
      trials.map((trial) => ({
        [counted(of(trial) ?? { metric: "value", scope: "all" })]: trial.best_value,
        ...Object.fromEntries(Object.entries(trial.last).map(([name, value]) => [`last ${name}`, value])),
        [of(trial)?.scope === "last" ? "last value at iteration" : "best value at iteration"]: trial.best_iteration,
        "trained to iteration": trial.iteration,
        "trained for": trial.running_s,
        segments: trial.segments.length,
        failures: trial.failures,
        why: trial.reason || null,
      })),
    ),
    ...parameterRows(trials, experiments, changed),
    ...rowsOf(
      "Experiment",
      trials.map((trial) => {
        const experiment = of(trial);
        return experiment
          ? {
              name: experiment.name,
              method: experiment.method,
              "longest trial": longestOf(experiment),
              seed: experiment.seed,
              workers: experiment.scaling.num_workers,
              entrypoint: experiment.entrypoint,
            }
          : {};
      }),
    ),
  ];
}

/** The parameters: first those that differ the most within their ranges, then those that are not numbers. */
export function parameterRows(
  trials: readonly TrialWithSegments[],
  experiments: ReadonlyMap<string, Experiment>,
  changed: ReadonlyMap<string, Lineage>,
): ComparedRow[] {
  const of = (trial: TrialWithSegments) => experiments.get(trial.experiment_id);
  const rows = rowsOf(
    "Parameters",
    trials.map((trial) => {
      const labels = of(trial)?.labels ?? {};
      const lineage = changed.get(trial.id);
      return named(lineage ? overTraining(trial.params, lineage, labels) : readable(trial.params, labels), labels);
    }),
  );
  const first = of(trials[0]!);
  if (!first || experiments.size > 1) return rows;
  const dimensions = new Map(dimensionsOf(trials, first).map((one) => [one.label, one]));
  const found = rows.map((row) => {
    const spread = spreadOf(row.values, dimensions.get(row.name));
    const note = spread === null || row.same ? {} : { note: `differs by ${shareWords(spread)} of its range` };
    return { row: { ...row, ...note }, spread: spread ?? -1 };
  });
  return found.sort((a, b) => b.spread - a.spread).map(({ row }) => row);
}

function shareWords(share: number): string {
  return share < 0.01 ? "less than 1 %" : `${Math.round(100 * share)} %`;
}
