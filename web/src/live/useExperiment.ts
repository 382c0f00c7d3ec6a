/** Everything that is shown of one experiment, read once and then kept up to date by its event stream. */

import {
  focusManager,
  keepPreviousData,
  useInfiniteQuery,
  useQuery,
  useQueryClient,
  type QueryClient,
  type QueryFilters,
  type QueryKey,
  type RefetchOptions,
  type InfiniteData,
  type UseInfiniteQueryResult,
  type UseQueryResult,
} from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { api, from, isMissing, PAGE, pagesOf } from "../api/client";
import { forgetEarly } from "../api/early";
import { DECISIONS, EVERY_POINT, ROWS, SAMPLE } from "../api/sizes";
import type {
  Changes,
  Curves,
  Decision,
  Experiment,
  SegmentItem,
  Series,
  Trial,
  TrialWithSegments,
} from "../api/types";
import { STEP, type Across } from "../curves/across";
import type { Range, Source } from "../curves/geometry";
import {
  merged,
  outgrow,
  withCurves,
  withDecisions,
  withExperiment,
  withRows,
  withSample,
  withSegments,
  frontsIn,
  type Rows,
  type Sample,
} from "./changes";
import { keys } from "./keys";
import { experimentEnded, hasEnded } from "./states";
import { Stream, type StreamState } from "./stream";

export { keys, SAMPLE };

/** Applies to an answer the changes that came while it was on its way, since the service may have read it before them. */
class Recent {
  readonly id: string;
  /** The changes so far during each request that has no answer yet. */
  private readonly waiting = new Set<Changes[]>();

  constructor(id: string) {
    this.id = id;
  }

  add(changes: Changes[]): void {
    for (const held of this.waiting) held.push(...changes);
  }

  /** Wait for an answer, and apply the changes that arrive before it. They are kept only until then, since reports are large. */
  async update<T>(answer: Promise<T>, apply: (answer: T, changes: Changes) => T): Promise<T> {
    const held: Changes[] = [];
    this.waiting.add(held);
    try {
      const read = await answer;
      return held.length === 0 ? read : apply(read, merged(held));
    } finally {
      this.waiting.delete(held);
    }
  }
}

/** The newest decisions, and the token of the page after them. */
export interface Decisions {
  items: readonly Decision[];
  older: string | null;
  /** The number of older ones that the user has asked for. They stay when the list is read again. */
  asked: number;
}

const REFRESH_MS = 10_000;
const ENDED_REFRESH_MS = 3000;
const ZOOM_KEPT_MS = 30_000;
const RESAMPLE_MS = 15_000;
/** If the stream has brought more decisions than this, only the newest ones are kept. */
const MOST_DECISIONS = 5000;
/** Milliseconds between two sorts of the table while trials report. */
const REORDER_MS = 5000;
/** The time between two changes of rows. The first change after a longer pause is shown at once. */
const ROWS_MS = 500;

type RowPages = InfiniteData<Rows, string>;

/** Adds the next older page to the decisions that are shown. */
export async function readOlderDecisions(client: QueryClient, id: string): Promise<void> {
  const token = client.getQueryData<Decisions>(keys.decisions(id))?.older;
  if (!token) return;
  const page = await api.decisions(id, { page_size: DECISIONS, page_token: token });
  client.setQueryData<Decisions>(keys.decisions(id), (old) => {
    if (!old || old.older !== token) return old;
    const have = new Set(old.items.map((decision) => decision.seq));
    const more = page.items.filter((decision) => !have.has(decision.seq));
    return { items: [...old.items, ...more], older: page.next_page_token, asked: old.asked + more.length };
  });
}

/** The source of the weights of a trial's segment; undefined if they are its own or there are none, or while it is not known. */
export type SourceOf = (trial: number, ordinal: number) => Source | undefined;

/** Read where exploits took their weights from; asks the service only if `wanted`, that is, if there are exploits. */
export function useSources(
  live: LiveExperiment,
  wanted: boolean,
): { segments: readonly SegmentItem[]; source: SourceOf } {
  const id = live.experiment.data?.id ?? "";
  const query = useQuery({
    queryKey: keys.segments(id),
    queryFn: ({ signal }) => live.recent.update<readonly SegmentItem[]>(api.segments(id, signal), withSegments),
    enabled: wanted && id !== "",
    structuralSharing: false,
    placeholderData: keepPreviousData,
  });
  const segments = query.data;
  return useMemo(() => {
    const found = new Map<string, Source>();
    for (const one of segments ?? NO_SEGMENTS) {
      if (one.cause !== "exploit" || one.source_trial_number === null) continue;
      found.set(`${one.trial_number}.${one.ordinal}`, {
        trial: one.source_trial_number,
        ordinal: one.source_ordinal,
        iteration: one.start_iteration,
      });
    }
    return {
      segments: segments ?? NO_SEGMENTS,
      source: (trial: number, ordinal: number) => found.get(`${trial}.${ordinal}`),
    };
  }, [segments]);
}

const NO_SEGMENTS: readonly SegmentItem[] = [];

export interface LiveExperiment {
  experiment: UseQueryResult<Experiment>;
  /** All trials, or a sample of very many. */
  trials: UseQueryResult<Sample>;
  decisions: UseQueryResult<Decisions>;
  stream: StreamState;
  recent: Recent;
}

export function useExperiment(id: string): LiveExperiment {
  const client = useQueryClient();
  const [recent, setRecent] = useState(() => new Recent(id));
  if (recent.id !== id) setRecent(new Recent(id));
  const [stream, setStream] = useState<StreamState>("connecting");
  const connected = useRef<Stream | null>(null);

  const experiment = useQuery({
    queryKey: keys.experiment(id),
    queryFn: async ({ signal }) => {
      const read = await recent.update(api.experiment(id, signal), (answer, changes) =>
        changes.experiment ? withExperiment(answer, changes.experiment) : answer,
      );
      // Here and not in an effect of each answer, which would render the page even if nothing has changed.
      connected.current?.expect(read.last_event_seq);
      return read;
    },
    // The stream is faster. Polling is for changes without an event, such as a script that has ended, and for times
    // without a stream. An experiment that has ended has none, and it may run again if somebody continues it.
    refetchInterval: ({ state: { data, error } }) =>
      isMissing(error) ? false : data && experimentEnded(data.state) ? ENDED_REFRESH_MS : REFRESH_MS,
  });
  // The rest is read after the experiment: the stream begins at the last_event_seq of that answer, so that nothing is missed.
  const ready = experiment.data !== undefined;
  const live = ready && !isMissing(experiment.error) && !experimentEnded(experiment.data.state);

  const trials = useQuery({
    queryKey: keys.trials(id),
    queryFn: ({ signal }) => recent.update(readSample(id, signal), withSample),
    enabled: ready,
    refetchOnMount: "always",
    structuralSharing: false,
  });
  // The best trials of a sample change with time. If all trials are here, the stream brings every change.
  useRereading(trials.refetch, live && trials.data?.complete === false ? RESAMPLE_MS : null);
  const decisions = useQuery({
    queryKey: keys.decisions(id),
    queryFn: ({ signal }) => recent.update(readDecisions(client, id, signal), decided),
    enabled: ready,
    refetchOnMount: "always",
    structuralSharing: false,
  });
  useRereading(decisions.refetch, live && decisions.data && isLong(decisions.data) ? RESAMPLE_MS : null);

  // If an ended experiment runs again, the stream begins where it ended: what came before that was noticed is not lost.
  const endedAt = useRef<{ id: string; seq: number } | null>(null);
  useEffect(() => {
    const found = client.getQueryData<Experiment>(keys.experiment(id));
    if (!live) {
      if (found && endedAt.current?.id !== id) endedAt.current = { id, seq: found.last_event_seq };
      return;
    }
    const end = endedAt.current?.id === id ? endedAt.current.seq : null;
    const start = end ?? found!.last_event_seq;
    endedAt.current = null;
    // Points and the experiment's state are shown as they come. Lists change the whole page, so several changes to them are put
    // together.
    let rows: Changes[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    let appliedAt = -Infinity;
    const applyRows = () => {
      clearTimeout(timer);
      timer = undefined;
      appliedAt = performance.now();
      if (rows.length > 0) applyLists(client, id, merged(rows));
      rows = [];
    };
    const connection = new Stream((after) => api.changesUrl(id, after), start, {
      onChanges: (changes) => {
        forgetEarly();
        recent.add(changes);
        rows.push(...changes);
        const all = merged(changes);
        applyPoints(client, id, all);
        applyExperiment(client, id, all);
        timer ??= setTimeout(applyRows, Math.max(0, appliedAt + ROWS_MS - performance.now()));
      },
      onReset: () => {
        rows = [];
        return readAgain(client, id);
      },
      onState: setStream,
      // Each change starts the time between two polls anew, so the next one may be far away.
      onRefused: () => void client.refetchQueries({ queryKey: keys.experiment(id), exact: true, type: "active" }),
    });
    connected.current = connection;
    // A trial's page reads the trial first. What changed before the stream began comes with no message.
    if (end === null) void client.invalidateQueries({ predicate: ({ queryKey }) => ofTrialIn(client, id, queryKey) });
    return () => {
      connection.close();
      connected.current = null;
      applyRows();
      // The last changes may have come after the connection was closed: read once more how it ended.
      void client.invalidateQueries({ ...ofExperiment(client, id), refetchType: "active" });
    };
  }, [client, id, ready, live, recent]);

  // Points on the time axis count from the experiment's start. Those that came before it was known are read again.
  const startedAt = experiment.data?.started_at ?? null;
  const wasPending = useRef(false);
  useEffect(() => {
    if (wasPending.current && startedAt !== null) void client.invalidateQueries({ queryKey: keys.allCurves(id) });
    wasPending.current = ready && startedAt === null;
  }, [client, id, ready, startedAt]);

  return { experiment, trials, decisions, stream, recent };
}

async function readSample(id: string, signal: AbortSignal): Promise<Sample> {
  const { items, ranks, fronts, total, trained } = await api.sample(id, SAMPLE, signal);
  const complete = items.length === total;
  const places = complete ? null : new Map(items.map(({ number }, i) => [number, ranks[i]!]));
  return { items, places, fronts: complete ? null : frontsIn([{ items, fronts }]), total, trained, complete };
}

/** Read the newest decisions. Keep the older ones that the user has asked for, unless there is a gap before them. */
async function readDecisions(client: QueryClient, id: string, signal: AbortSignal): Promise<Decisions> {
  const { items, next_page_token: older } = await api.decisions(id, { page_size: DECISIONS }, signal);
  const shown = client.getQueryData<Decisions>(keys.decisions(id));
  const oldest = items.at(-1)?.seq ?? Infinity;
  if (!shown?.asked || isLong(shown) || shown.items[0]!.seq < oldest) return { items, older, asked: 0 };
  return { ...shown, items: [...items, ...shown.items.filter(({ seq }) => seq < oldest)] };
}

/** Return true if the stream has brought so many decisions that only the newest ones are kept. */
function isLong({ items, asked }: Decisions): boolean {
  return items.length - asked > MOST_DECISIONS;
}

export function useCurves(live: LiveExperiment, metric: string, across: Across): UseQueryResult<Curves> {
  const id = live.experiment.data?.id ?? "";
  const query = useQuery({
    queryKey: keys.curves(id, metric, across),
    queryFn: ({ signal }) => live.recent.update(api.curves(id, { metric, across }, signal), withCurves),
    enabled: id !== "" && metric !== "",
    refetchOnMount: "always",
    structuralSharing: false,
    placeholderData: keepPreviousData,
  });
  useRereadingCurves(live, query);
  return query;
}

function useRereadingCurves(live: LiveExperiment, { data, refetch }: UseQueryResult<Curves>): void {
  const state = live.experiment.data?.state;
  const changing = state !== undefined && !experimentEnded(state);
  useRereading(refetch, changing && data !== undefined && outgrow(data) ? RESAMPLE_MS : null);
}

/** The part of the curves that is zoomed to, with more of its points; undefined if all of them are there already. */
export function useFinerCurves(
  live: LiveExperiment,
  whole: Curves | undefined,
  part: Range | null,
): Curves | undefined {
  const id = live.experiment.data?.id ?? "";
  const wanted = whole !== undefined && whole.width > 1 && part !== null;
  const query = useQuery({
    queryKey: [...keys.curves(id, whole?.metric ?? "", whole ?? STEP), part?.min, part?.max],
    queryFn: ({ signal }) => {
      const query = { metric: whole!.metric, across: whole!, from: part!.min, to: part!.max };
      return live.recent.update(api.curves(id, query, signal), withCurves);
    },
    enabled: wanted,
    structuralSharing: false,
    gcTime: ZOOM_KEPT_MS,
  });
  useRereadingCurves(live, query);
  return wanted ? query.data : undefined;
}

/** Return the curves with every report, in place of those at the resolution of a screen. */
export async function withEveryReport(
  { id, thinned_at }: Pick<Experiment, "id" | "thinned_at">,
  curves: Curves,
): Promise<Curves> {
  if (curves.width === 1) return curves;
  const query = { metric: curves.metric, across: curves, points: EVERY_POINT };
  // The service returns only so many points at once. It says with `width` how many times as many there are.
  const complete = async ({ width, series }: Curves): Promise<Series[]> => {
    if (width === 1 || series.length < 2) return series;
    const found: Series[] = [];
    const size = Math.ceil(series.length / width);
    for (let at = 0; at < series.length; at += size) {
      const trial = series.slice(at, at + size).map(({ number }) => number);
      found.push(...(await complete(await api.curves(id, { ...query, trial }))));
    }
    return found;
  };
  const found = await api.curves(id, query);
  // Of a thinned experiment, there are no more points, however few trials are read at once.
  return thinned_at ? found : { ...found, series: await complete(found) };
}

export interface RowQuery {
  /** A column of the service, with a minus before it for descending order. */
  sort: string;
  where: readonly string[];
}

/**
 * Read the rows of the table as the service sorts and filters them, more of them as the user scrolls. Nothing is read
 * if all trials are known.
 */
export function useRows(
  live: LiveExperiment,
  { sort, where }: RowQuery,
  enabled: boolean,
): UseInfiniteQueryResult<RowPages> {
  const experiment = live.experiment.data;
  const id = experiment?.id ?? "";
  const fronts = (experiment?.objectives.length ?? 0) > 1;
  const query: UseInfiniteQueryResult<RowPages> = useInfiniteQuery({
    queryKey: [...keys.rows(id), sort, ...where],
    queryFn: ({ pageParam, signal }) => {
      const query = {
        sort,
        where: [...where],
        page_size: ROWS,
        ...(pageParam && { page_token: pageParam }),
        ...(fronts && { fronts }),
      };
      const page = api.trials(id, query, signal) as Promise<Rows>;
      return live.recent.update(page, (rows, changes) => withRows([rows], changes)[0]!);
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_page_token ?? undefined,
    enabled: enabled && id !== "",
    structuralSharing: false,
    placeholderData: keepPreviousData,
  });
  const changing = enabled && experiment !== undefined && !experimentEnded(experiment.state);
  useRereading(query.refetch, changing ? REORDER_MS : null);
  return query;
}

/**
 * Read again every `ms` milliseconds, or never if it is null. The option `refetchInterval` is not enough: each change of the
 * stream that is put into the cache begins its interval anew.
 */
function useRereading(refetch: (options: RefetchOptions) => unknown, ms: number | null): void {
  useEffect(() => {
    if (ms === null) return;
    const timer = setInterval(() => focusManager.isFocused() && void refetch({ cancelRefetch: false }), ms);
    return () => clearInterval(timer);
  }, [refetch, ms]);
}

/** Read all rows of the table, also those to which the user has not scrolled. */
export function readAllRows({ id, objectives }: Experiment, { sort, where }: RowQuery): Promise<Rows[]> {
  const query = { sort, where: [...where], page_size: PAGE, ...(objectives.length > 1 && { fronts: true }) };
  return pagesOf((token) => api.trials(id, { ...query, ...from(token) }) as Promise<Rows>);
}

/**
 * A trial by its number: one of those that are known, or else read from the service. Undefined while it is not known yet, null if
 * there is no such trial.
 */
export function useTrialNumbered(live: LiveExperiment, number: number | null): Trial | null | undefined {
  const known = live.trials.data?.items.find((trial) => trial.number === number);
  const id = live.experiment.data?.id ?? "";
  const absent = number !== null && live.trials.data !== undefined && !known;
  // The numbers of trials have no gaps.
  const exists = Number.isInteger(number) && number! >= 0 && number! < (live.experiment.data?.trials ?? 0);
  const query = useQuery({
    queryKey: [...keys.rows(id), "numbered", number],
    queryFn: async ({ signal }): Promise<RowPages> => {
      const page = await api.trials(id, { sort: "number", where: [`number=${number}`], page_size: 1 }, signal);
      return { pages: [page], pageParams: [""] };
    },
    enabled: absent && exists && live.trials.data?.complete === false,
    structuralSharing: false,
  });
  if (known || !absent) return known;
  return exists ? query.data?.pages[0]?.items[0] : null;
}

function decided(shown: Decisions, changes: Changes): Decisions {
  return { ...shown, items: withDecisions(shown.items, changes, shown.older === null) };
}

/** Put the points of changes into the curves that are in the cache. */
function applyPoints(client: QueryClient, id: string, changes: Changes): void {
  client.setQueriesData<Curves>({ queryKey: keys.allCurves(id) }, (old) => old && withCurves(old, changes));
}

/** Put the experiment's own row into the cache, unless the one that is there is newer. */
function applyExperiment(client: QueryClient, id: string, { experiment, seq }: Changes): void {
  client.setQueryData<Experiment>(
    keys.experiment(id),
    (old) =>
      experiment
        ? withExperiment(old, experiment)
        : old && { ...old, last_event_seq: Math.max(old.last_event_seq, seq) }, // the events are read again
  );
}

/** Put changes into every list of the experiment that is in the cache. */
function applyLists(client: QueryClient, id: string, all: Changes): void {
  client.setQueryData<Sample>(keys.trials(id), (old) => old && withSample(old, all));
  client.setQueriesData<RowPages>(
    { queryKey: keys.rows(id) },
    (old) => old && { ...old, pages: withRows(old.pages, all) },
  );
  client.setQueryData<Decisions>(keys.decisions(id), (old) => old && decided(old, all));
  client.setQueryData<readonly SegmentItem[]>(keys.segments(id), (old) => old && withSegments(old, all));
  const restarted = new Set(all.segments.map((segment) => segment.trial_number));
  const decidedOn = new Set(all.decisions.map((decision) => decision.trial_id));
  for (const row of all.trials) {
    if (client.getQueryState(keys.trial(row.id)) === undefined) continue;
    // After its end, nothing of a trial is polled any more. Its last points may not have been read, and its checkpoints still change.
    const ended = hasEnded(row.state);
    const restartedOrDecided = restarted.has(row.number) || decidedOn.has(row.id);
    afterFirstAnswers(client, { queryKey: keys.trial(row.id) }, (queryKey) => {
      const [, , part] = queryKey;
      if (part === undefined) client.setQueryData<TrialWithSegments>(queryKey, (old) => old && { ...old, ...row });
      // The placement of a segment comes only with GET of the trial.
      if (ended || (restartedOrDecided && (part === undefined || part === "decisions")))
        void client.invalidateQueries({ queryKey, exact: true });
    });
  }
}

/** Call a function for each of these queries. If the first answer is on its way, it may be older than a change, so wait for it. */
function afterFirstAnswers(client: QueryClient, filter: QueryFilters, then: (queryKey: QueryKey) => void): void {
  for (const { queryKey, state, promise } of client.getQueryCache().findAll(filter)) {
    const act = () => then(queryKey);
    if (state.data === undefined && promise) promise.then(act, act);
    else act();
  }
}

/** Read everything about an experiment again. Answers that are on their way may be too old, so they are not waited for. */
async function readAgain(client: QueryClient, id: string): Promise<void> {
  const filter = ofExperiment(client, id);
  await client.cancelQueries(filter);
  await client.invalidateQueries(filter);
}

/** The queries of an experiment and of its trials. */
function ofExperiment(client: QueryClient, id: string): QueryFilters {
  return {
    predicate: ({ queryKey }) =>
      (queryKey[0] === "experiment" && queryKey[1] === id) || ofTrialIn(client, id, queryKey),
  };
}

/** Return true if these are the keys of a trial of this experiment. */
function ofTrialIn(client: QueryClient, id: string, key: readonly unknown[]): boolean {
  const [what, trial] = key;
  return (
    what === "trial" &&
    typeof trial === "string" &&
    client.getQueryData<TrialWithSegments>(keys.trial(trial))?.experiment_id === id
  );
}
