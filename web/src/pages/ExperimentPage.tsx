import { Alert, Anchor, CloseButton, Group, Skeleton, Tabs, useComputedColorScheme } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, useCallback, useMemo, useState } from "react";
import { Navigate, useLocation, useParams } from "react-router";
import { all, api, from, isMissing } from "../api/client";
import type { Experiment, Trial, TrialState } from "../api/types";
import { experimentCall, trialsCall } from "../charts/copies";
import { chosenWords, conditionsOf, dimensionsOf, matches, recognized, type Dimension } from "../charts/dimensions";
import { firstOf, frontsOf, pointsOf, ranksByFront } from "../charts/pareto";
import { isSingle } from "../charts/scatter";
import { identityColour, ranks } from "../curves/colours";
import { expectedOf } from "../curves/expected";
import { readable } from "../format";
import { isPopulationBased } from "../live/states";
import { frontsIn, rowsIn, type Rows } from "../live/changes";
import {
  keys,
  readAllRows,
  readOlderDecisions,
  SAMPLE,
  useExperiment,
  useRows,
  useTrialNumbered,
  type LiveExperiment,
} from "../live/useExperiment";
import { Announcer } from "../parts/common/Announcer";
import { BestPanel } from "../parts/curves/BestPanel";
import { axesOf, CurvesPanel } from "../parts/curves/CurvesPanel";
import { DecisionLog } from "../parts/decisions/DecisionLog";
import { lazily } from "../parts/common/lazily";
import { Panel } from "../parts/common/Panel";
import { MissingPage, ProblemBox } from "../parts/common/Problem";
import { CopyMenu } from "../parts/common/CopyMenu";
import { Setup } from "../parts/setup/Setup";
import { columnsOf, EXPECTED, FRONT, serverColumn, sortTrials } from "../parts/table/trialColumns";
import { TrialTable } from "../parts/table/TrialTable";
import { useLater } from "../parts/common/useLater";
import { useSame } from "../parts/common/useSame";
import { useTitle } from "../parts/common/useTitle";
import { formatList, formatSort, parseBrushes, parseList, parseNumbers, parseSort, withBrush } from "./address";
import classes from "./ExperimentPage.module.css";
import { ExperimentHeader } from "./ExperimentHeader";
import { useAddress } from "./useAddress";
import { useComparison } from "./useComparison";
import { own } from "../own";

const HistoryPanel = lazily(() => import("../parts/curves/HistoryPanel"));
const SlicesPanel = lazily(() => import("../parts/parameters/SlicesPanel"));
const Importance = lazily(() => import("../parts/parameters/Importance"));
const ParametersTab = lazily(() => import("../parts/parameters/ParametersTab"));
const ParetoTab = lazily(() => import("../parts/parameters/ParetoTab"));
const DecisionsTab = lazily(() => import("../parts/decisions/DecisionsTab"));
const EventsTab = lazily(() => import("../parts/decisions/EventsTab"));
const DriverLog = lazily(() => import("../parts/decisions/DriverLog"));
const TrialDrawer = lazily(() => import("../parts/trial/TrialDrawer"));
const LineageTab = lazily(() => import("../parts/runs/LineageTab"));
const TimelineTab = lazily(() => import("../parts/runs/TimelineTab"));

const NO_DIMENSIONS: readonly Dimension[] = [];
const NO_TRIALS: readonly Trial[] = [];
const NO_PAGES: readonly Rows[] = [];
const NO_FRONTS: ReadonlyMap<number, number> = new Map();
const STATES: readonly TrialState[] = ["running", "pending", "paused", "completed", "stopped", "failed", "cancelled"];

export default function ExperimentPage() {
  const { id = "" } = useParams();
  return id.startsWith("exp_") ? <Identified id={id} /> : <Named name={id} />;
}

/**
 * Open the experiment that has this name, with the same choices. If there is not exactly one, list those whose names contain it.
 * Archived experiments count only if no other one fits.
 */
function Named({ name }: { name: string }) {
  const { search } = useLocation();
  const query = useQuery({
    queryKey: [...keys.experiments, "named", name],
    queryFn: ({ signal }) =>
      all((token) => api.experiments({ name, archived: "all", page_size: 200, ...from(token) }, signal)),
  });
  if (query.isError) return <MissingPage error={query.error} what="experiment" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={480} />;
  const named = query.data.filter((one) => one.name === name);
  const present = named.filter((one) => !one.archived_at);
  const [found, ...others] = present.length > 0 ? present : named;
  const only = found && !others.length;
  const near = found ? named : query.data;
  const archived = near.length > 0 && near.every((one) => one.archived_at);
  const list = `/experiments?name=${encodeURIComponent(name)}${archived ? "&archived=yes" : ""}`;
  return <Navigate replace to={only ? `/experiments/${found.id}${search}` : list} />;
}

function Identified({ id }: { id: string }) {
  const { search } = useLocation();
  const live = useExperiment(id);
  const { experiment: query } = live;
  const state = isMissing(query.error) ? "deleted" : query.data?.state;
  useTitle(query.data ? `${query.data.name} · ${state}` : "Experiment");
  // A name may begin like an id.
  if (query.data && query.data.id !== id) return <Navigate replace to={`/experiments/${query.data.id}${search}`} />;
  // An experiment that is shown may be deleted by somebody else.
  if (query.data && !isMissing(query.error)) return <Loaded key={id} experiment={query.data} live={live} />;
  const retry = () => void query.refetch();
  if (query.isError)
    return (
      <>
        <MissingPage error={query.error} what="experiment" shown={query.data?.name} retry={retry} />
        <Typed id={id} />
      </>
    );
  return <Skeleton height={480} />;
}

/** What was typed into the form that is gone with the experiment, so that it can be copied. */
function Typed({ id }: { id: string }) {
  const client = useQueryClient();
  // The form drops it, but only once this has been rendered.
  const [text] = useState(() => client.getQueryData<string>(keys.typed(id)));
  if (text === undefined) return null;
  return (
    <section style={{ maxWidth: 640, margin: "32px auto" }}>
      <h2 style={{ fontSize: 15, margin: "0 0 8px" }}>What you typed was not saved</h2>
      <pre
        tabIndex={0}
        role="region"
        aria-label="What you typed"
        style={{ whiteSpace: "pre-wrap", overflowWrap: "anywhere" }}
      >
        {text}
      </pre>
    </section>
  );
}

function Loaded({ experiment, live }: { experiment: Experiment; live: LiveExperiment }) {
  const address = useAddress();
  const theme = useComputedColorScheme("light");
  const [pointed, setPointed] = useState<number | null>(null);
  const sample = live.trials.data;
  const found = sample?.items ?? NO_TRIALS;
  // The experiment tells this before the sample has arrived, so that the first rows need not wait for the sample.
  const complete = sample?.complete ?? experiment.trials <= SAMPLE;
  const { labels } = experiment;
  const trials = useMemo(() => inWords(found, labels), [found, labels]);
  const byNumber = useMemo(() => new Map(trials.map((trial) => [trial.number, trial])), [trials]);
  const places = sample?.places;
  const expected = useSame(expectedOf(experiment.best), [JSON.stringify(experiment.best?.runs)]);
  const { objectives } = experiment;
  const several = objectives.length > 1;
  // If there are very many trials, the ranks and the fronts come from the service.
  const ranked = sample?.fronts;
  const fronts = useSameMap(
    useMemo(
      () => (several ? (ranked ?? frontsOf(pointsOf(trials, objectives), objectives)) : null),
      [several, ranked, trials, objectives],
    ),
  );
  const rank = useSameMap(
    useMemo(
      () => places ?? (fronts ? ranksByFront(fronts) : ranks(trials, experiment.mode, expected)),
      [places, fronts, trials, experiment.mode, expected],
    ),
  );

  const chosen = address.get("trial");
  const selected = chosen === null ? null : Number(chosen);
  const { set } = address;
  const select = useCallback((number: number) => set({ trial: String(number) }), [set]);
  const close = () => set({ trial: null, view: null, segment: null, logrank: null, weights: null });
  const opened = useTrialNumbered(live, selected);
  const open = opened != null;
  // The drawer is loaded when a trial is first opened.
  const [wasOpen, setWasOpen] = useState(open);
  if (open && !wasOpen) setWasOpen(true);
  const pickText = address.get("pick");
  const picked = useMemo(() => parseNumbers(pickText), [pickText]);
  const pick = useCallback(
    (change: (picked: readonly number[]) => readonly number[]) =>
      set((get) => ({ pick: change(parseNumbers(get("pick"))).join(",") || null })),
    [set],
  );
  const colours = useMemo(
    () => new Map(picked.map((number, i) => [number, identityColour(i, theme)])),
    [picked, theme],
  );
  const single = useMemo(() => isSingle(trials) && !several, [trials, several]);
  const history = single && address.get("x") === null;
  const population = isPopulationBased(experiment);
  const tabs = [
    ...(several ? [["pareto", "Pareto front"]] : []),
    ["curves", history ? "History" : "Curves"],
    ["parameters", "Parameters"],
    ...(population ? [["lineage", "Lineage"]] : []),
    ["timeline", "Timeline"],
    ["decisions", "Decisions"],
    ["events", "Events"],
    ["setup", "Set-up"],
  ] as const;
  const asked = address.get("tab");
  const tab = tabs.find(([id, label]) => id === asked || slug(label) === slug(asked ?? ""))?.[0] ?? tabs[0][0];

  const brushText = address.get("brush");
  // Compute the dimensions only if they are shown, since they change with every report.
  const wanted = tab === "parameters" || brushText !== null || (history && tab === "curves");
  const { metric: objective, space, scope } = experiment;
  const dimensions = useMemo(
    () => (wanted ? dimensionsOf(trials, { metric: objective, objectives, space, labels, scope }) : NO_DIMENSIONS),
    [wanted, trials, objective, objectives, space, labels, scope],
  );
  const brushes = useMemo(() => recognized(parseBrushes(brushText), dimensions), [brushText, dimensions]);
  const state = STATES.find((one) => one === address.get("state")) ?? null;
  const filtered = state !== null || dimensions.some((dimension) => own(brushes, dimension.id));
  const shown = useMemo(
    () =>
      filtered
        ? trials.filter((trial) => (state === null || trial.state === state) && matches(trial, dimensions, brushes))
        : trials,
    [filtered, trials, state, dimensions, brushes],
  );
  const only = useMemo(() => (filtered ? new Set(shown.map((trial) => trial.number)) : null), [filtered, shown]);

  const best = useMemo(
    () =>
      several
        ? { column: FRONT, descending: false }
        : { column: expected ? EXPECTED : "best", descending: experiment.mode === "max" },
    [several, experiment.mode, expected],
  );
  const sortText = address.get("sort");
  const sort = useMemo(() => parseSort(sortText, best), [sortText, best]);

  const where = useMemo(
    () => [
      ...(state ? [`state=${state}`] : []),
      ...conditionsOf(dimensions, brushes, trials, found, { space, labels }),
    ],
    [state, dimensions, brushes, trials, found, space, labels],
  );
  const column = serverColumn(sort.column) ?? "number";
  const order = `${sort.descending ? "-" : ""}${column}`;
  const query = useRows(live, { sort: order, where }, !complete);
  const pages = query.data?.pages;
  const read = useMemo(() => inWords(pages ? rowsIn(pages) : NO_TRIALS, labels), [pages, labels]);
  const rowFronts = useSameMap(
    useMemo(() => (several && !complete ? frontsIn(pages ?? NO_PAGES) : fronts), [several, complete, pages, fronts]),
  );
  const columns = useMemo(
    () =>
      columnsOf(
        trials,
        experiment.metric,
        experiment.time_attr,
        objectives,
        experiment.scope,
        false,
        labels,
        expected,
        fronts,
      ),
    [trials, experiment.metric, experiment.time_attr, objectives, experiment.scope, labels, expected, fronts],
  );
  const sorted = useMemo(
    () => (complete ? sortTrials(shown, columns, sort) : read),
    [complete, shown, columns, sort, read],
  );
  const compare = useComparison(experiment.id, trials, sorted);
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = query;
  const onAll = async () => {
    const found = await readAllRows(experiment, { sort: order, where });
    return found.map((page) => ({ ...page, items: inWords(page.items, labels) }));
  };
  const onMore = useCallback(() => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, fetchNextPage]);
  const hideText = address.get("hide");
  const pinText = address.get("pin");
  const choice = useMemo(() => ({ hidden: parseList(hideText), pinned: parseList(pinText) }), [hideText, pinText]);

  const chips = dimensions.flatMap((dimension) => {
    const brush = own(brushes, dimension.id);
    if (!brush) return [];
    return [
      {
        label: `${dimension.label}: ${chosenWords(dimension, brush)}`,
        clear: () => set((get) => ({ brush: withBrush(get("brush"), dimension.id, null) })),
      },
    ];
  });
  // The curves are drawn first, and then what is around them. The rows that the service has sorted are shown as soon as they come:
  // React would put them off for as long as answers for the charts arrive, and such charts show only a sample.
  const calm = useLater();
  const later = calm || pages !== undefined;
  const views = { selected, pointed, onSelect: select, onPoint: setPointed, only, address, colours };
  const table = (colourOf?: (trial: Trial) => string | null) =>
    later && (
      <>
        {live.trials.isError && !live.trials.data && (
          <ProblemBox error={live.trials.error} what="list of trials" retry={() => void live.trials.refetch()} />
        )}
        {query.isError && !query.data && (
          <ProblemBox error={query.error} what="list of trials" retry={() => void query.refetch()} />
        )}
        {compare.isError && (
          <ProblemBox error={compare.error} what="selected trials" retry={() => compare.mutate(picked)} />
        )}
        <TrialTable
          experiment={experiment}
          trials={trials}
          rows={sorted}
          total={complete ? sorted.length : (pages?.[0]?.total ?? 0)}
          onMore={complete ? undefined : onMore}
          onAll={complete ? undefined : onAll}
          loading={live.trials.isLoading || query.isLoading}
          sortedByService={!complete}
          rank={rank}
          expected={expected}
          fronts={rowFronts}
          {...(colourOf ? { colourOf } : {})}
          theme={theme}
          selected={selected}
          onSelect={select}
          onPoint={setPointed}
          state={state}
          onState={(next) => set({ state: next })}
          sort={sort}
          onSort={(next) => set({ sort: formatSort(next, best) })}
          chips={chips}
          onShowAll={() => set({ state: null, brush: null })}
          picked={picked}
          onPick={pick}
          onCompare={() => compare.mutate(picked)}
          call={trialsCall(experiment.id, where, order)}
          choice={choice}
          onChoice={(change) =>
            set((get) => {
              const { hidden, pinned } = change({ hidden: parseList(get("hide")), pinned: parseList(get("pin")) });
              return { hide: formatList(hidden), pin: formatList(pinned) };
            })
          }
        />
      </>
    );

  return (
    <div className={classes.page} data-drawer={open}>
      <Announcer experiment={experiment} />
      <ExperimentHeader
        experiment={experiment}
        live={live}
        sample={sample}
        trials={trials}
        front={fronts && (complete ? firstOf(fronts).size : undefined)}
        onSelect={select}
        address={address}
      />
      {opened === null && (
        <Alert
          color="yellow"
          variant="light"
          role="alert"
          title={`There is no trial ${chosen}`}
          withCloseButton
          closeButtonLabel="Close"
          onClose={close}
        >
          {numbersWords(experiment.trials)}
        </Alert>
      )}
      <Tabs
        value={tab}
        onChange={(next) => set({ tab: next === tabs[0][0] ? null : next })}
        keepMounted={false}
        classNames={{ list: classes.tabs! }}
      >
        <Tabs.List aria-label="Views of this experiment" data-many={tabs.length > 6}>
          {tabs.map(([id, label]) => (
            <Tabs.Tab key={id} value={id}>
              {label}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        <Tabs.Panel value={tab} className={classes.panel}>
          <Suspense fallback={<Skeleton height={420} />}>
            {tab === "curves" && (
              <>
                <div className={classes.top}>
                  {history ? (
                    // With boundaries of their own, these panels do not delay the table while their code is loaded.
                    <Suspense fallback={<Skeleton height={420} />}>
                      <HistoryPanel
                        experiment={experiment}
                        sample={sample}
                        trials={trials}
                        where={where}
                        rank={rank}
                        onCurves={() => set({ x: "time" })}
                        {...views}
                      />
                    </Suspense>
                  ) : (
                    <CurvesPanel
                      experiment={experiment}
                      live={live}
                      trials={byNumber}
                      sample={sample}
                      colours={colours}
                      rank={rank}
                      only={only}
                      selected={selected}
                      pointed={pointed}
                      onSelect={select}
                      address={address}
                    />
                  )}
                  <div className={classes.side}>
                    <BestPanel
                      experiment={experiment}
                      live={live}
                      across={axesOf(experiment, trials, address, experiment.metric).across}
                      trial={byNumber.get(experiment.best?.trial_number ?? -1)}
                      onSelect={select}
                      more={
                        population && (
                          <Anchor component="button" type="button" fz="inherit" onClick={() => set({ tab: "lineage" })}>
                            Lineage of the population
                          </Anchor>
                        )
                      }
                    />
                    {later && (
                      <LatestDecisions
                        experiment={experiment}
                        live={live}
                        onSelect={select}
                        onAll={() => set({ tab: "decisions" })}
                      />
                    )}
                  </div>
                </div>
                {history && (
                  <Suspense fallback={<Skeleton height={320} />}>
                    <SlicesPanel
                      experiment={experiment}
                      trials={trials}
                      dimensions={dimensions}
                      where={where}
                      rank={rank}
                      {...views}
                    />
                    <Importance experiment={experiment} where={where} />
                  </Suspense>
                )}
                {table()}
              </>
            )}
            {tab === "pareto" && (
              <>
                <ParetoTab
                  experiment={experiment}
                  sample={sample}
                  trials={trials}
                  fronts={fronts ?? NO_FRONTS}
                  byNumber={byNumber}
                  where={where}
                  {...views}
                />
                {table()}
              </>
            )}
            {tab === "parameters" && (
              <>
                <ParametersTab
                  experiment={experiment}
                  sample={sample}
                  trials={trials}
                  dimensions={dimensions}
                  rank={rank}
                  brushes={brushes}
                  where={where}
                  {...views}
                />
                {table()}
              </>
            )}
            {tab === "lineage" && (
              <>
                <LineageTab
                  experiment={experiment}
                  live={live}
                  rank={rank}
                  selected={selected}
                  onSelect={select}
                  address={address}
                  table={table}
                />
              </>
            )}
            {tab === "timeline" && (
              <TimelineTab experiment={experiment} address={address} selected={selected} onSelect={select} />
            )}
            {tab === "decisions" && <DecisionsTab experiment={experiment} address={address} onSelect={select} />}
            {tab === "events" && <EventsTab experiment={experiment} address={address} onSelect={select} />}
            {tab === "events" && <DriverLog experiment={experiment} />}
            {tab === "setup" && (
              <Panel title="Set-up" aside={<CopyMenu call={experimentCall(experiment.id)} />}>
                <Setup experiment={experiment} />
              </Panel>
            )}
          </Suspense>
        </Tabs.Panel>
      </Tabs>
      {wasOpen && (
        <Suspense fallback={open && <Opening number={opened.number} onClose={close} />}>
          <TrialDrawer
            experiment={experiment}
            trial={opened ?? undefined}
            rank={rank}
            onSelect={select}
            onClose={close}
            address={address}
          />
        </Suspense>
      )}
    </div>
  );
}

/** Take the place of the drawer while its code is loaded, which takes seconds on a slow network. */
function Opening({ number, onClose }: { number: number; onClose: () => void }) {
  return (
    <div className={classes.opening}>
      <Group justify="space-between">
        <div role="status">
          <b>Trial {number}</b>
        </div>
        <CloseButton aria-label="Close the trial" onClick={onClose} />
      </Group>
      <Skeleton height={240} mt="md" />
    </div>
  );
}

/** Say which trials an experiment has, since their numbers have no gaps. */
function numbersWords(trials: number): string {
  if (trials === 0) return "This experiment has not started any trial yet.";
  return trials === 1 ? "This experiment has only trial 0." : `The trials of this experiment are 0 to ${trials - 1}.`;
}

/** "Set-up" and "set-up" are the same tab in an address. */
function slug(text: string): string {
  return text.toLowerCase().replace(/[^a-z]/g, "");
}

/** Return the trials with the values of choices in place of their indices. */
function inWords(trials: readonly Trial[], labels: Experiment["labels"]): readonly Trial[] {
  if (Object.keys(labels).length === 0) return trials;
  return trials.map((trial) => ({ ...trial, params: readable(trial.params, labels) }));
}

/** Return the previous map if the new one is equal, so that what was drawn from it is not drawn again. */
function useSameMap<T extends ReadonlyMap<number, number> | null>(map: T): T {
  const [kept, keep] = useState(map);
  const same =
    kept === map ||
    (kept !== null &&
      map !== null &&
      kept.size === map.size &&
      [...map].every(([key, value]) => kept.get(key) === value));
  if (!same) keep(map);
  return same ? kept : map;
}

interface LatestDecisionsProps {
  experiment: Experiment;
  live: LiveExperiment;
  onSelect: (number: number) => void;
  onAll: () => void;
}

function LatestDecisions({ experiment, live, onSelect, onAll }: LatestDecisionsProps) {
  const client = useQueryClient();
  const { data } = live.decisions;
  const { id } = experiment;
  const onOlder = useCallback(() => readOlderDecisions(client, id), [client, id]);
  return (
    <Panel
      title="Latest decisions"
      flush
      fill
      aside={
        <button type="button" className={classes.link} onClick={onAll}>
          all, with filters
        </button>
      }
    >
      <DecisionLog decisions={data?.items} onSelect={onSelect} narrow {...(data?.older ? { onOlder } : {})} />
    </Panel>
  );
}
