import { Alert, Drawer, SegmentedControl, Select, Skeleton, useComputedColorScheme } from "@mantine/core";
import { useMediaQuery } from "@mantine/hooks";
import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useMemo, useState } from "react";
import { useParams, useSearchParams } from "react-router";
import type { Decision, Experiment, Trial, XAxis } from "../api/types";
import { Crumbs } from "../App";
import { BestChart } from "../curves/BestChart";
import { ranks } from "../curves/colours";
import { CurvesChart } from "../curves/CurvesChart";
import { duration, elapsed, moment, number, param, readable } from "../format";
import { experimentEnded, readOlderDecisions, useCurves, useExperiment, type LiveExperiment } from "../live/useExperiment";
import { Actions } from "../parts/Actions";
import { DecisionLog } from "../parts/DecisionLog";
import { Importance } from "../parts/Importance";
import { LiveMark } from "../parts/LiveMark";
import { Facts, Panel } from "../parts/Panel";
import { ProblemBox } from "../parts/Problem";
import { Progress } from "../parts/Progress";
import { Setup } from "../parts/Setup";
import { StateBadge } from "../parts/StateBadge";
import { TrialDetails, TrialTitle } from "../parts/TrialDetails";
import { TrialTable } from "../parts/TrialTable";
import { useNow } from "../parts/useNow";
import { useTitle } from "../parts/useTitle";
import classes from "./ExperimentPage.module.css";

const NO_TRIALS: readonly Trial[] = [];
const NO_DECISIONS: readonly Decision[] = [];

export function ExperimentPage() {
  const { id = "" } = useParams();
  const live = useExperiment(id);
  const { experiment: query } = live;
  useTitle(query.data ? `${query.data.name} · ${query.data.state}` : "Experiment");
  if (query.data) return <Loaded key={id} experiment={query.data} live={live} />;
  if (query.isError) return <ProblemBox error={query.error} what="experiment" retry={() => void query.refetch()} />;
  return <Skeleton height={480} />;
}

function Loaded({ experiment, live }: { experiment: Experiment; live: LiveExperiment }) {
  const [search, setSearch] = useSearchParams();
  const theme = useComputedColorScheme("light");
  const [pointed, setPointed] = useState<number | null>(null);
  const found = live.trials.data ?? NO_TRIALS;
  const { labels } = experiment;
  const trials = useMemo(
    () => (Object.keys(labels).length === 0 ? found : found.map((trial) => ({ ...trial, params: readable(trial.params, labels) }))),
    [found, labels],
  );
  const client = useQueryClient();
  const byNumber = useMemo(() => new Map(trials.map((trial) => [trial.number, trial])), [trials]);

  const chosen = search.get("trial");
  const selected = chosen === null ? null : Number(chosen);
  const set = useCallback(
    (key: string, value: string | null) =>
      setSearch((old) => {
        const next = new URLSearchParams(old);
        if (value === null) next.delete(key);
        else next.set(key, value);
        return next;
      }, { replace: true, preventScrollReset: true }),
    [setSearch],
  );
  const select = useCallback((number: number) => set("trial", String(number)), [set]);

  const open = selected !== null && byNumber.has(selected);

  return (
    <div className={classes.page} data-drawer={open}>
      <Header experiment={experiment} live={live} />
      <div className={classes.top}>
        <CurvesPanel experiment={experiment} live={live} trials={byNumber} selected={selected} pointed={pointed} onSelect={select} search={search} set={set} />
        <div className={classes.side}>
          <BestPanel experiment={experiment} live={live} onSelect={select} />
          <Panel title="Decisions" flush fill>
            <DecisionLog
              decisions={live.decisions.data?.items ?? NO_DECISIONS} onSelect={select} narrow
              {...(live.decisions.data?.older ? { onOlder: () => readOlderDecisions(client, experiment.id) } : {})}
            />
          </Panel>
        </div>
      </div>
      {live.trials.isError && !live.trials.data && <ProblemBox error={live.trials.error} what="list of trials" retry={() => void live.trials.refetch()} />}
      <TrialTable experiment={experiment} trials={trials} theme={theme} selected={selected} onSelect={select} onPoint={setPointed} />
      <div className={classes.below}>
        <Panel title="Set-up"><Setup experiment={experiment} /></Panel>
        <Panel title="Importance of parameters"><Importance experiment={experiment} /></Panel>
      </div>
      <TrialDrawer
        experiment={experiment} trials={trials} trial={selected === null ? undefined : byNumber.get(selected)}
        onSelect={select} onClose={() => set("trial", null)}
      />
    </div>
  );
}

function Header({ experiment, live }: { experiment: Experiment; live: LiveExperiment }) {
  const now = useNow(!experimentEnded(experiment.state));
  return (
    <header className={classes.header}>
      <div className={classes.title}>
        <Crumbs items={[{ label: "Experiments", to: "/experiments" }, { label: experiment.id }]} />
        <div className={classes.name}>
          <h1>{experiment.name}</h1>
          <StateBadge state={experiment.state} size="lg" />
          {!experimentEnded(experiment.state) && <LiveMark state={live.stream} />}
        </div>
      </div>
      <div className={classes.figures}>
        <Figure label={`Best ${experiment.metric}`} value={number(experiment.best?.value)} />
        <Figure label="Time" value={duration(elapsed(experiment.started_at, experiment.ended_at, now))} title={`started ${moment(experiment.started_at)}`} />
        <Figure label="Method" value={experiment.method} />
      </div>
      <div className={classes.progress}><Progress experiment={experiment} words /></div>
      <Actions experiment={experiment} />
      {experiment.error && <Alert className={classes.notice!} color="red" variant="light" role="alert">{experiment.error}</Alert>}
      {experiment.how_to_go_on && <p className={classes.notice} role="status">{experiment.how_to_go_on}</p>}
      {!experiment.error && experiment.reason && <p className={classes.notice}>{experiment.reason}</p>}
    </header>
  );
}

function Figure({ label, value, title }: { label: string; value: string; title?: string }) {
  return (
    <div className={classes.figure} title={title}>
      <span>{label}</span>
      <b>{value}</b>
    </div>
  );
}

interface CurvesPanelProps {
  experiment: Experiment;
  live: LiveExperiment;
  trials: ReadonlyMap<number, Trial>;
  selected: number | null;
  pointed: number | null;
  onSelect: (number: number) => void;
  search: URLSearchParams;
  set: (key: string, value: string | null) => void;
}

function CurvesPanel({ experiment, live, trials, selected, pointed, onSelect, search, set }: CurvesPanelProps) {
  const phone = useMediaQuery("(max-width: 640px)") ?? false;
  const metrics = [...new Set([experiment.metric, ...experiment.metrics])];
  const asked = search.get("metric");
  const metric = asked !== null && metrics.includes(asked) ? asked : experiment.metric;
  const x: XAxis = search.get("x") === "time" ? "time" : "step";
  const log = search.get("y") === "log";
  const trim = search.get("all") === null;
  const query = useCurves(live, metric, x);
  const reported = query.data?.series.some((series) => series.segments.length > 0);
  const height = phone ? 280 : 392;
  return (
    <Panel
      title={
        metrics.length > 1 ? (
          <Select
            size="xs" w={170} aria-label="Metric" allowDeselect={false} data={metrics} value={metric}
            onChange={(value) => set("metric", value === experiment.metric ? null : value)}
          />
        ) : metric
      }
      aside={
        <div className={classes.controls}>
          <SegmentedControl size="xs" aria-label="Horizontal axis" value={x} onChange={(value) => set("x", value === "time" ? value : null)}
            data={[{ value: "step", label: "step" }, { value: "time", label: "time" }]} />
          <SegmentedControl size="xs" aria-label="Vertical axis" value={log ? "log" : "linear"} onChange={(value) => set("y", value === "log" ? value : null)}
            data={[{ value: "linear", label: "linear" }, { value: "log", label: "log" }]} />
        </div>
      }
    >
      {query.isError && !query.data && <ProblemBox error={query.error} what="curves" retry={() => void query.refetch()} />}
      {query.data && reported ? (
        <CurvesChart
          curves={query.data} objective={experiment} trials={trials} log={log} trim={trim} onTrim={(on) => set("all", on ? null : "1")} timeAttr={experiment.time_attr} selected={selected} marked={pointed}
          onSelect={onSelect} height={height}
        />
      ) : (
        !query.isError && <div className={classes.empty} style={{ height }}>{query.data ? waitingWords(experiment) : "Reading the curves…"}</div>
      )}
    </Panel>
  );
}

function waitingWords(experiment: Experiment): string {
  if (experimentEnded(experiment.state)) return "It ended before any trial reported.";
  if (experiment.trials === 0) return "Waiting for the first trial to start.";
  return "Waiting for the first report. Every tuner.report() of a trial becomes a point here.";
}

function BestPanel({ experiment, live, onSelect }: { experiment: Experiment; live: LiveExperiment; onSelect: (number: number) => void }) {
  const curves = useCurves(live, experiment.metric, "step");
  const ended = experimentEnded(experiment.state);
  const now = useNow(!ended);
  const { best } = experiment;
  const until = elapsed(experiment.started_at, experiment.ended_at, now);
  const soFar = curves.data?.best_so_far;
  return (
    <>
      <Panel title={`Best ${experiment.metric} so far`}>
        {soFar && soFar.x.length > 0
          ? <BestChart best={soFar} metric={experiment.metric} until={until} height={118} />
          : <div className={classes.empty} style={{ height: 118 }}>Nothing reported yet.</div>}
      </Panel>
      <Panel
        title="Best configuration"
        aside={best && <button type="button" className={classes.link} onClick={() => onSelect(best.trial_number)}>trial {best.trial_number}, iteration {best.iteration}</button>}
      >
        {best
          ? <Facts scroll items={Object.entries(readable(best.params, experiment.labels)).map(([name, value]) => [name, <span title={JSON.stringify(value)}>{param(value)}</span>])} />
          : <span className={classes.dimmed}>{experiment.no_best ?? "Known with the first report."}</span>}
        {best && <Finished experiment={experiment} onSelect={onSelect} />}
      </Panel>
    </>
  );
}

/** The best value may be a peak that was lost again: what the best trial that was trained to its end has come to. */
function Finished({ experiment, onSelect }: { experiment: Experiment; onSelect: (number: number) => void }) {
  const finished = experiment.best?.finished;
  if (finished) {
    return (
      <p className={classes.dimmed}>
        Best finished: <b>{number(finished.value)}</b> by{" "}
        <button type="button" className={classes.link} onClick={() => onSelect(finished.trial_number)}>trial {finished.trial_number}</button>, trained to iteration {finished.iteration}
      </p>
    );
  }
  if (!experimentEnded(experiment.state) || experiment.counts.completed > 0) return null;
  return <p className={classes.dimmed}>No trial was trained to its end, so the best value may not last.</p>;
}

interface TrialDrawerProps {
  experiment: Experiment;
  trials: readonly Trial[];
  trial: Trial | undefined;
  onSelect: (number: number) => void;
  onClose: () => void;
}

function TrialDrawer({ experiment, trials, trial, onSelect, onClose }: TrialDrawerProps) {
  const phone = useMediaQuery("(max-width: 640px)") ?? false;
  const rank = useMemo(() => ranks(trials, experiment.mode), [trials, experiment.mode]);
  return (
    <Drawer
      opened={trial !== undefined} onClose={onClose} position="right" size={phone ? "100%" : 480} withOverlay={phone} lockScroll={phone} trapFocus={phone}
      classNames={{ inner: classes.drawer! }} closeOnClickOutside={false} transitionProps={{ duration: 120 }} title={trial && <TrialTitle trial={trial} />}
      closeButtonProps={{ "aria-label": "Close the trial", ...{ "data-autofocus": true } }}
    >
      {trial && (
        <TrialDetails key={trial.id} id={trial.id} experiment={experiment} rank={rank.get(trial.number)} of={rank.size} onSelect={onSelect} />
      )}
    </Drawer>
  );
}
