import { Anchor, Skeleton, Tabs } from "@mantine/core";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Suspense, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment, Failure, Segment, Trial, TrialWithSegments } from "../../api/types";
import { trialCall } from "../../charts/copies";
import { chosenAcross, type Across } from "../../curves/across";
import { bytes, config, counted, duration, elapsed, metric, moment, readable, title } from "../../format";
import { expectedOf } from "../../curves/expected";
import { rankWords } from "../../curves/colours";
import { hasEnded } from "../../live/states";
import { keys } from "../../live/useExperiment";
import type { Address } from "../../pages/useAddress";
import { Checkpoints } from "./Checkpoints";
import { DecisionLog } from "../decisions/DecisionLog";
import { DataSets } from "./DataSets";
import { Lineage } from "./Lineage";
import { Logs } from "./Logs";
import { Neighbors } from "./Neighbors";
import { mayHaveChanged, Parameters, useChanged } from "./Schedule";
import { lazily } from "../common/lazily";
import { Heading } from "../common/Heading";
import { Facts } from "../common/Panel";
import { ProblemBox } from "../common/Problem";
import { CopyMenu } from "../common/CopyMenu";
import { Sentence } from "../common/Sentence";
import { StateBadge } from "../common/StateBadge";
import { TrialActions } from "../actions/TrialActions";
import { TrialCharts } from "./TrialCharts";
import { Usage } from "./Usage";
import { RAN_FOR } from "../table/trialColumns";
import { useNow } from "../common/useNow";
import { useMayChange } from "../common/useSession";
import classes from "./TrialDetails.module.css";
import { own } from "../../own";

const Profile = lazily(() => import("./Profile"));

interface TrialDetailsProps {
  id: string;
  experiment: Experiment;
  rank: number | undefined;
  of: number;
  onSelect: (number: number) => void;
  /** The address of the page, which contains the open tab. */
  address: Address;
}

const VIEWS = ["overview", "segments", "checkpoints", "lineage", "neighbors", "decisions", "logs", "usage", "profile"];

/** Show everything that is known about one trial: its configuration, its course, and the reason why it ended. */
export function TrialDetails({ id, experiment, rank, of, onSelect, address }: TrialDetailsProps) {
  const query = useQuery({ queryKey: keys.trial(id), queryFn: ({ signal }) => api.trial(id, signal) });
  const mayChange = useMayChange();
  const views = mayChange ? VIEWS : VIEWS.filter((one) => one !== "profile"); // profiling changes the processes of a trial
  const tab = views.find((one) => one === address.get("view")) ?? "overview";
  const setTab = (next: string | null) =>
    address.set({ view: next === "overview" ? null : next, segment: null, logrank: null, weights: null });
  const across = chosenAcross(address.get("x"), experiment);
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="trial" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={300} />;
  const trial = query.data;
  return (
    <div className={classes.details}>
      <Outcome trial={trial} />
      <Tabs value={tab} onChange={setTab} classNames={{ tab: classes.tab! }}>
        <Tabs.List mb="sm" aria-label="Views of this trial">
          <Tabs.Tab value="overview">Overview</Tabs.Tab>
          <Tabs.Tab value="segments">Segments{trial.segments.length > 1 ? ` · ${trial.segments.length}` : ""}</Tabs.Tab>
          <Tabs.Tab value="checkpoints">Checkpoints</Tabs.Tab>
          <Tabs.Tab value="lineage">Lineage</Tabs.Tab>
          <Tabs.Tab value="neighbors">Neighbors</Tabs.Tab>
          <Tabs.Tab value="decisions">Decisions</Tabs.Tab>
          <Tabs.Tab value="logs">Logs</Tabs.Tab>
          <Tabs.Tab value="usage">Usage</Tabs.Tab>
          {mayChange && <Tabs.Tab value="profile">Profile</Tabs.Tab>}
        </Tabs.List>
        <Tabs.Panel value="overview">
          <Overview
            trial={trial}
            experiment={experiment}
            across={across}
            rank={rank}
            of={of}
            address={address}
            onSelect={onSelect}
          />
        </Tabs.Panel>
        <Tabs.Panel value="segments">
          <Segments trial={trial} labels={experiment.labels} onSelect={onSelect} />
        </Tabs.Panel>
        <Tabs.Panel value="checkpoints">
          {tab === "checkpoints" && <Checkpoints trial={trial} experiment={experiment} />}
        </Tabs.Panel>
        <Tabs.Panel value="lineage">
          {tab === "lineage" && (
            <Lineage trial={trial} labels={experiment.labels} onSelect={onSelect} address={address} />
          )}
        </Tabs.Panel>
        <Tabs.Panel value="neighbors">
          {tab === "neighbors" && <Neighbors trial={trial} experiment={experiment} onSelect={onSelect} />}
        </Tabs.Panel>
        <Tabs.Panel value="decisions">
          {tab === "decisions" && <OwnDecisions trial={trial} onSelect={onSelect} />}
        </Tabs.Panel>
        <Tabs.Panel value="logs">{tab === "logs" && <Logs trial={trial} address={address} />}</Tabs.Panel>
        <Tabs.Panel value="usage">
          {tab === "usage" && <Usage trial={trial} />}
          {tab === "usage" && <DataSets trial={trial} source={experiment.source} />}
        </Tabs.Panel>
        <Tabs.Panel value="profile">
          {tab === "profile" && (
            <Suspense fallback={<Skeleton height={120} />}>
              <Profile trial={trial} />
            </Suspense>
          )}
        </Tabs.Panel>
      </Tabs>
    </div>
  );
}

function OwnDecisions({ trial, onSelect }: { trial: TrialWithSegments; onSelect: (number: number) => void }) {
  const query = useInfiniteQuery({
    queryKey: keys.trialDecisions(trial.id),
    queryFn: ({ pageParam, signal }) => {
      const asked = { trial: trial.number, page_size: 200, ...(pageParam && { page_token: pageParam }) };
      return api.decisions(trial.experiment_id, asked, signal);
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_page_token ?? undefined,
  });
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="list of decisions" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={120} />;
  return (
    <DecisionLog
      decisions={query.data.pages.flatMap((page) => page.items)}
      onSelect={onSelect}
      height={460}
      {...(query.hasNextPage && { onOlder: async () => void (await query.fetchNextPage()) })}
    />
  );
}

function Outcome({ trial }: { trial: TrialWithSegments }) {
  return (
    <>
      {trial.reason && !(trial.state === "failed" && trial.error) && (
        <p className={classes.reason}>
          <Reason of={trial} />
        </p>
      )}
      {trial.waiting && !hasEnded(trial.state) && (
        <p className={classes.waiting}>
          <b>Waiting:</b> <Sentence text={trial.waiting} />
        </p>
      )}
      {trial.error && <FailureBox failure={trial.error} over={trial.state !== "failed"} />}
    </>
  );
}

/**
 * "Stopped at iteration 9: ...", or "Why running: ..." if the reason does not begin with the state. Ranks do not wait for an answer
 * to most reports, so a trial may have reported more before it stopped.
 */
function Reason({ of: { state, reason, iteration } }: { of: Pick<Trial, "state" | "reason" | "iteration"> }) {
  const named = reason.startsWith(`${state} `);
  const at = /^stopped at iteration (\d+):/.exec(reason)?.[1];
  return (
    <>
      <b>{named ? title(state) : `Why ${state}:`}</b> {named ? reason.slice(state.length + 1) : reason}
      {at && iteration > Number(at) && `. It had gone on to iteration ${iteration} before it was told.`}
    </>
  );
}

function FailureBox({ failure, over }: { failure: Failure; over: boolean }) {
  const where = [failure.rank !== null && `rank ${failure.rank}`, failure.node && `on ${failure.node}`]
    .filter(Boolean)
    .join(" ");
  const stacks = Object.entries(failure.stacks ?? {});
  return (
    <section className={classes.failure} aria-label="Failure" data-over={over}>
      <p>
        <b>
          {over ? "An earlier failure" : "Failure"}
          {where && `, ${where}`}
        </b>{" "}
        <span>
          {failure.cause.replaceAll("_", " ")}
          {failure.kind === "user" ? " in the training code" : ` · ${failure.kind}`}
        </span>
      </p>
      <p tabIndex={0}>{failure.message}</p>
      {failure.traceback && <Fold title="Traceback" text={failure.traceback} open />}
      {failure.log_tail && <Fold title="Last log lines" text={failure.log_tail} />}
      {stacks.map(([rank, stack]) => (
        <Fold key={rank} title={`Stack of rank ${rank}`} text={stack} />
      ))}
    </section>
  );
}

function Fold({ title, text, open = false }: { title: string; text: string; open?: boolean }) {
  return (
    <details open={open}>
      <summary>{title}</summary>
      <pre className={classes.pre} tabIndex={0}>
        {text}
      </pre>
    </details>
  );
}

const EXPECTED_TITLE =
  "The expected value of the configuration, given all its runs. A value of few runs is partly luck, so it counts only in part. After repeats, trials are ranked by this value.";

type Fact = [string, ReactNode];

/** After repeats: the other runs of a trial's configuration, and its expected value, by which the trial is ranked. */
export function repeatFacts(
  trial: Pick<Trial, "number" | "best_value" | "repeat_of">,
  experiment: Pick<Experiment, "metric" | "best">,
  place: string,
  onSelect: (number: number) => void,
): Fact[] {
  const links = (numbers: readonly number[]) =>
    numbers.map((number, i) => (
      <span key={number}>
        {i > 0 && ", "}
        <Anchor component="button" type="button" size="sm" onClick={() => onSelect(number)}>
          trial {number}
        </Anchor>
      </span>
    ));
  const expected = expectedOf(experiment.best);
  const runs = expected?.runs(trial) ?? null;
  const value = expected?.value(trial) ?? null;
  const others = runs?.trials.filter((number) => number !== trial.number && number !== trial.repeat_of) ?? [];
  const facts: Fact[] = [];
  if (trial.repeat_of !== null) facts.push(["Repeats", links([trial.repeat_of])]);
  if (others.length > 0) facts.push([trial.repeat_of === null ? "Repeated as" : "Other repeats", links(others)]);
  if (value !== null)
    facts.push([
      `Expected ${experiment.metric}`,
      <span title={EXPECTED_TITLE}>
        <b>{metric(value)}</b>
        {runs ? `, from the mean ${metric(runs.mean)} of ${runs.trials.length} runs` : ", from a single run"}
        {place}
      </span>,
    ]);
  return facts;
}

interface OverviewProps {
  trial: TrialWithSegments;
  experiment: TrialDetailsProps["experiment"];
  rank: number | undefined;
  of: number;
  across: Across;
  address: Address;
  onSelect: (number: number) => void;
}

function Overview({ trial, experiment, across, rank, of, address, onSelect }: OverviewProps) {
  const words = rankWords(rank, experiment.objectives.length > 1, of);
  const place = words === null ? "" : `, ${words}`;
  const changed = useChanged(trial.id, "newest", trial.segments.length, mayHaveChanged(trial.segments));
  const ofRuns = repeatFacts(trial, experiment, place, onSelect);
  return (
    <div className={classes.overview}>
      {trial.iteration > 0 && (
        <TrialCharts trial={trial} metric={experiment.metric} across={across} rank={rank} of={of} address={address} />
      )}
      <Heading>Parameters</Heading>
      <Parameters
        params={trial.params}
        labels={experiment.labels}
        changed={changed}
        until={`iteration ${trial.iteration}`}
        more={
          <>
            {JSON.stringify(trial.best_params) !== JSON.stringify(trial.params) &&
              `The best value was reported with ${config(readable(trial.best_params, experiment.labels), experiment.labels)}. `}
            <Anchor component="button" type="button" size="sm" onClick={() => address.set({ view: "lineage" })}>
              All changes
            </Anchor>
          </>
        }
      />
      <Heading>Result</Heading>
      <Facts
        items={[
          ...ofRuns,
          [
            title(counted(experiment)),
            <>
              <b>{metric(trial.best_value)}</b>
              {trial.best_iteration !== null && ` at iteration ${trial.best_iteration}`}
              {!ofRuns.some(([name]) => name.startsWith("Expected ")) && place}
              {changed && trial.best_iteration !== null && (
                <>
                  {" "}
                  <span style={{ whiteSpace: "nowrap" }}>
                    ·{" "}
                    <Anchor
                      component="button"
                      type="button"
                      size="sm"
                      onClick={() => address.set({ view: "lineage", weights: "best" })}
                    >
                      what led to it
                    </Anchor>
                  </span>
                </>
              )}
            </>,
          ],
          ...Object.entries(trial.last)
            .filter(([name]) => experiment.scope === "all" || name !== experiment.metric)
            .map(([name, value]): [string, string] => [`Last ${name}`, metric(value)]),
          ...(trial.feasible === null
            ? []
            : [["Within the constraints", trial.feasible ? "yes" : "no"] as [string, string]]),
          ["Iteration", String(trial.iteration)],
          ["Trained for", <span title={RAN_FOR}>{duration(trial.running_s)}</span>],
          ["Started", moment(trial.started_at)],
          ["Ended", moment(trial.ended_at)],
          ...(trial.failures ? [["Failures so far", String(trial.failures)] as [string, string]] : []),
          ...(trial.checkpoint
            ? [
                [
                  "Checkpoint",
                  <>
                    <code>{trial.checkpoint.uri}</code> (iteration {trial.checkpoint.step},{" "}
                    {bytes(trial.checkpoint.bytes)})
                  </>,
                ] as [string, ReactNode],
              ]
            : []),
          ["Id", <code>{trial.id}</code>],
        ]}
      />
    </div>
  );
}

const CAUSE: Record<Segment["cause"], string> = {
  start: "Started",
  retry: "Retry after a failure",
  resume: "Resumed",
  fork: "Forked",
  exploit: "Took over",
  resize: "Resized",
};

const OUTCOME: Readonly<Record<string, string>> = {
  returned: "its function returned",
  left: "ended by a decision",
  failed: "failed",
};

interface SegmentsProps {
  trial: TrialWithSegments;
  labels: Experiment["labels"];
  onSelect: (number: number) => void;
}

/** Each uninterrupted execution of this trial, oldest first. */
function Segments({ trial, labels, onSelect }: SegmentsProps) {
  const now = useNow(!hasEnded(trial.state));
  if (trial.segments.length === 0) return <p className={classes.none}>The trial has not run yet.</p>;
  return (
    <>
      <p className={`${classes.dimmed} ${classes.about}`}>
        A segment is one execution of the trial without interruption.
      </p>
      <ol className={classes.segments}>
        {trial.segments.map((segment, i) => {
          const before = trial.segments[i - 1];
          const changed = before
            ? Object.entries(segment.params).filter(
                ([name, value]) => JSON.stringify(own(before.params, name)) !== JSON.stringify(value),
              )
            : [];
          const donor = segment.source_trial_number;
          return (
            <li key={segment.id} data-cause={segment.cause}>
              <p>
                <b>
                  {segment.cause === "exploit" && donor === trial.number
                    ? "Continued with other parameters"
                    : CAUSE[segment.cause]}
                </b>
                {segment.cause === "resize" && segment.workers != null && before?.workers != null
                  ? ` from ${before.workers} to ${segment.workers} ${segment.workers === 1 ? "worker" : "workers"}`
                  : ""}
                {donor !== null && donor !== trial.number && (
                  <>
                    {" "}
                    the weights of{" "}
                    <Anchor component="button" type="button" size="sm" onClick={() => onSelect(donor)}>
                      trial {donor}
                    </Anchor>
                  </>
                )}
                {segment.start_iteration > 0
                  ? ` at iteration ${segment.start_iteration}`
                  : segment.cause === "start"
                    ? ""
                    : " from the beginning"}
                {segment.outcome && <span> · {OUTCOME[segment.outcome] ?? segment.outcome}</span>}
              </p>
              {changed.length > 0 && <p>now {config(readable(Object.fromEntries(changed), labels), labels)}</p>}
              <p className={classes.dimmed}>
                {moment(segment.started_at)} · ran {duration(elapsed(segment.started_at, segment.ended_at, now))}
                {places(segment)}
                {segment.startup_s !== null && (
                  <>
                    {" · "}
                    <span className={classes.value}>
                      started in {duration(segment.startup_s)}
                      {segment.warm && ", warm"}
                    </span>
                  </>
                )}
              </p>
            </li>
          );
        })}
      </ol>
    </>
  );
}

/** " · 2 ranks on node-a, node-b (2 GPUs)", from where the ranks were placed. */
export function places(segment: Pick<Segment, "placement">): string {
  const ranks = segment.placement["ranks"];
  if (!Array.isArray(ranks) || ranks.length === 0) return "";
  const placed = ranks as { host?: string; node?: string; gpus?: unknown[] }[];
  const hosts = [...new Set(placed.map((rank) => rank.host ?? rank.node ?? "?"))];
  const gpus = placed.reduce((n, rank) => n + (rank.gpus?.length ?? 0), 0);
  return ` · ${placed.length} ${placed.length === 1 ? "rank" : "ranks"} on ${hosts.join(", ")}${gpus ? ` (${gpus} ${gpus === 1 ? "GPU" : "GPUs"})` : ""}`;
}

interface TrialTitleProps {
  trial: Trial;
  experiment: Experiment;
  address: Address;
  /** The heading with the trial's number. */
  children: ReactNode;
}

/** A trial's heading, with its state and what can be done with it beside it. */
export function TrialTitle({ trial, experiment, address, children }: TrialTitleProps) {
  const chosen = {
    segment: address.get("segment"),
    rank: address.get("logrank"),
    search: address.get("logq"),
    weights: address.get("weights"),
  };
  const call = trialCall(trial, address.get("view") ?? "overview", chosen);
  return (
    <div className={classes.title}>
      {children}
      <StateBadge state={trial.state} size="lg" />
      <TrialActions key={trial.id} trial={trial} experiment={experiment} />
      <CopyMenu call={call} />
    </div>
  );
}
