import { Anchor } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { api } from "../api/client";
import { MOST_TIMED, wasteWords } from "../charts/timeline";
import type { Experiment, Forecast, Trial } from "../api/types";
import { Crumbs } from "../App";
import { HYPERVOLUME } from "../charts/pareto";
import { leading, metric, moment, number, rangeWords, ranWords } from "../format";
import { experimentEnded } from "../live/states";
import type { Sample } from "../live/changes";
import { keys, type LiveExperiment } from "../live/useExperiment";
import { useHypervolume } from "../live/useHypervolume";
import { Actions } from "../parts/actions/Actions";
import { FailureNotice } from "../parts/trial/FailureNotice";
import { StartedOver, STARTS_OVER } from "../parts/trial/StartedOver";
import { LiveMark } from "../parts/common/LiveMark";
import { Progress } from "../parts/experiments/Progress";
import { savedOfMany, savedShare, savedTraining } from "../parts/common/saved";
import { Sentence } from "../parts/common/Sentence";
import { StateBadge } from "../parts/common/StateBadge";
import { useNow } from "../parts/common/useNow";
import parts from "../parts/common/parts.module.css";
import classes from "./ExperimentPage.module.css";
import { bestFigure, endTitle } from "./forecast";
import type { Address } from "./useAddress";

/** Say if starting and waiting took more than half of the time of an experiment that has ended; else null. */
function useWaste({ id, state, trials }: Experiment): string | null {
  const query = useQuery({
    queryKey: [...keys.experiment(id), "timeline", 0],
    queryFn: ({ signal }) => api.timeline(id, 0, MOST_TIMED, signal),
    enabled: experimentEnded(state) && trials > 0 && trials <= MOST_TIMED,
  });
  // The timeline of a running experiment may be there as well, since its tab reads it.
  return query.data && experimentEnded(state) ? wasteWords(query.data.totals) : null;
}

interface ExperimentHeaderProps {
  experiment: Experiment;
  live: LiveExperiment;
  sample: Sample | undefined;
  trials: readonly Trial[];
  /** The number of trials on the Pareto front; null with one objective, undefined if only the service knows it. */
  front: number | null | undefined;
  onSelect: (number: number) => void;
  address: Address;
}

/** The head of an experiment's page: its name, its main figures, its actions, and what needs attention. */
export function ExperimentHeader({
  experiment,
  live,
  sample,
  trials,
  front,
  onSelect,
  address,
}: ExperimentHeaderProps) {
  const now = useNow(!experimentEnded(experiment.state));
  const ofFailed = trials.some(({ number, state }) => number === experiment.best?.trial_number && state === "failed");
  const saved = useMemo(
    () => (sample && !sample.complete ? savedOfMany(sample.trained, experiment) : savedTraining(trials, experiment)),
    [sample, trials, experiment],
  );
  const firstFailed = useFirstFailed(experiment, sample);
  const failures = useMemo(
    () => (sample?.complete ? sample.items.filter((trial) => trial.state === "failed") : undefined),
    [sample],
  );
  const forecast = useForecast(experiment);
  const waste = useWaste(experiment);
  const { objectives } = experiment;
  const growth = useHypervolume(experiment);
  const hypervolume = growth?.y.at(-1);
  const size = front === undefined ? growth?.front : front;
  return (
    <header className={classes.header}>
      <div className={classes.title}>
        <Crumbs items={[{ label: "Experiments", to: "/experiments" }, { label: experiment.id }]} />
        <div className={classes.name}>
          <h1>{experiment.name}</h1>
          <StateBadge state={experiment.state} size="lg" />
          {experiment.archived_at && (
            <span
              className={parts.state}
              data-tone="quiet"
              data-size="lg"
              title={`Archived on ${moment(experiment.archived_at)}: lists show it only if they show archived experiments.`}
            >
              archived
            </span>
          )}
          {!experimentEnded(experiment.state) && <LiveMark state={live.stream} />}
        </div>
      </div>
      <div className={classes.figures}>
        {size !== null ? (
          <>
            <Figure
              label="Pareto front"
              value={size === undefined ? "–" : `${size} ${size === 1 ? "trial" : "trials"}`}
              title={objectives.map(({ metric, mode }) => `${mode} ${metric}`).join(", ")}
            />
            {hypervolume !== undefined && (
              <Figure label="Hypervolume" value={number(Number(hypervolume.toPrecision(3)))} title={HYPERVOLUME} />
            )}
          </>
        ) : (
          <Figure
            label={`${leading(experiment)}${experiment.best?.runs ? ", mean" : ofFailed ? ", of a failed trial" : ""}`}
            value={metric(experiment.best?.value)}
            title={
              experiment.best?.runs
                ? `the mean over the runs of the configuration of trial ${experiment.best.trial_number}: ` +
                  experiment.best.runs.trials.map((number) => `trial ${number}`).join(", ")
                : undefined
            }
          />
        )}
        <Figure
          label="Time"
          value={ranWords(experiment, now)}
          title={
            experiment.started_at === null
              ? "It has not started yet."
              : `The time for which it ran since ${moment(experiment.started_at)}. Pauses do not count, nor does the time between an end and a continuation.`
          }
        />
        {saved && (
          <Figure
            label="Training saved"
            value={savedShare(saved)}
            title={`Compared with training every started trial to its end: ${saved.done} of ${saved.full} iterations were trained, including those that restarted trials repeated. Trials that failed, were cancelled or never started are not counted.`}
          />
        )}
        {experiment.gpu_hours > 0 && (
          <Figure label="GPU hours" value={gpuWords(experiment)} title={gpuTitle(experiment)} />
        )}
        {forecast && <ForecastFigures forecast={forecast} label={leading(experiment)} mode={experiment.mode} />}
        <Figure label="Method" value={experiment.method} />
      </div>
      <div className={classes.status}>
        <div className={classes.progress}>
          <Progress experiment={experiment} words />
        </div>
        <div className={classes.actions}>
          <Actions experiment={experiment} />
        </div>
      </div>
      {forecast && (forecast.end ?? forecast.more) && (
        <p className={classes.notice}>
          <b>Outlook:</b> {forecast.summary}.
        </p>
      )}
      {waste && (
        <p className={classes.notice}>
          {waste}: see the{" "}
          <Anchor component="button" size="sm" onClick={() => address.set({ tab: "timeline" })}>
            timeline
          </Anchor>
          .
        </p>
      )}
      {experiment.unreadable && (
        <p className={parts.warning} role="status">
          <Sentence text={experiment.unreadable} />.
        </p>
      )}
      {experiment.next_step && (
        <p className={parts.warning} role="status">
          <Sentence text={experiment.next_step} />.
        </p>
      )}
      <StartedOver
        experiment={experiment}
        onShow={() => address.set({ tab: "decisions", kind: "resume", q: STARTS_OVER })}
      />
      <FailureNotice
        experiment={experiment}
        first={firstFailed}
        failures={failures}
        onSelect={onSelect}
        onShowFailed={() => address.set({ tab: null, state: "failed" })}
      />
    </header>
  );
}

const FORECAST_MS = 30_000;

/** The forecast of a running experiment, once there is one. */
function useForecast(experiment: Experiment): Forecast | undefined {
  const { data } = useQuery({
    queryKey: [...keys.experiment(experiment.id), "forecast"],
    queryFn: ({ signal }) => api.forecast(experiment.id, signal),
    enabled: experiment.state === "running",
    refetchInterval: FORECAST_MS,
    retry: false,
  });
  return experiment.state === "running" ? data : undefined;
}

/**
 * Show the expected end of the experiment and its expected best value, each as an interval; nothing if it is too early
 * to tell.
 */
function ForecastFigures({
  forecast: { end, best, best_is_open: open },
  label,
  mode,
}: {
  forecast: Forecast;
  label: string;
  mode: Experiment["mode"];
}) {
  return (
    <>
      {end && <Figure label="Ends in" value={rangeWords(end.seconds)} title={endTitle(end)} />}
      {best && <Figure label={`${label} then`} {...bestFigure(best, open, mode)} />}
    </>
  );
}

/** GPU hours, with as many digits as matter: 0.042, 3.1, 250. */
function hours(value: number): string {
  return `${value < 1 ? Number(value.toPrecision(2)) : value < 100 ? value.toFixed(1) : Math.round(value)} h`;
}

function gpuWords({ gpu_hours, gpu_hours_saved }: Experiment): string {
  return `${hours(gpu_hours)}${gpu_hours_saved > 0 ? `, ${hours(gpu_hours_saved)} saved` : ""}`;
}

function gpuTitle({ gpu_hours, gpu_hours_saved, expected_gpu_hours, limits }: Experiment): string {
  const more = expected_gpu_hours !== null && expected_gpu_hours > gpu_hours;
  return [
    `${hours(gpu_hours)} used so far`,
    ...(more ? [`about ${hours(expected_gpu_hours)} at its end, if further trials use as many`] : []),
    ...(gpu_hours_saved > 0 ? [`${hours(gpu_hours_saved)} saved by stopping trials early`] : []),
    ...(limits.gpu_hours ? [`at most ${hours(limits.gpu_hours)}`] : []),
  ].join("; ");
}

/** The first trial that failed. If there are very many trials, only the service knows which one that is. */
function useFirstFailed(experiment: Experiment, sample: Sample | undefined): Trial | undefined {
  const asked = sample !== undefined && !sample.complete && experiment.counts.failed > 0;
  const { data } = useQuery({
    queryKey: [...keys.experiment(experiment.id), "first failed", experiment.counts.failed],
    queryFn: ({ signal }) =>
      api.trials(experiment.id, { sort: "number", where: ["state=failed"], page_size: 1 }, signal),
    enabled: asked,
    placeholderData: keepPreviousData,
  });
  return asked ? data?.items[0] : sample?.items.find((trial) => trial.state === "failed");
}

function Figure({ label, value, title }: { label: string; value: string; title?: string | undefined }) {
  return (
    <div className={classes.figure} title={title}>
      <span>{label}</span>
      <b>{value}</b>
    </div>
  );
}
