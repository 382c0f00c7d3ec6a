/** Everything that is shown of one experiment, read once and then kept up to date by its event stream. */

import { keepPreviousData, useQuery, useQueryClient, type QueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { api } from "../api/client";
import type { Curves, Decision, Experiment, ExperimentState, SegmentItem, Trial, TrialWithSegments, XAxis } from "../api/types";
import type { Source } from "../curves/geometry";
import { foldCurves, foldDecisions, foldTrial, foldTrials, type Frame, type LiveEvent } from "./events";
import { Stream, type StreamState } from "./stream";

export const keys = {
  experiments: ["experiments"] as const,
  experiment: (id: string) => ["experiment", id] as const,
  trials: (id: string) => ["experiment", id, "trials"] as const,
  curves: (id: string, metric: string, x: XAxis) => ["experiment", id, "curves", metric, x] as const,
  allCurves: (id: string) => ["experiment", id, "curves"] as const,
  segments: (id: string) => ["experiment", id, "segments"] as const,
  importance: (id: string) => ["experiment", id, "importance"] as const,
  decisions: (id: string) => ["experiment", id, "decisions"] as const,
  trial: (id: string) => ["trial", id] as const,
  trialDecisions: (id: string) => ["trial", id, "decisions"] as const,
  trialCurves: (id: string, x: XAxis) => ["trial", id, "curves", x] as const,
};

const ENDED: ReadonlySet<ExperimentState> = new Set(["completed", "failed", "cancelled"]);

export function experimentEnded(state: ExperimentState): boolean {
  return ENDED.has(state);
}

/** Events of the last while, so that an answer which was read before some of them is brought up to date when it arrives. */
class Recent {
  private events: LiveEvent[] = [];
  private readonly limit = 20_000;

  get mark(): number {
    return this.events[this.events.length - 1]?.seq ?? -1;
  }

  add(events: LiveEvent[]): void {
    this.events.push(...events);
    if (this.events.length > this.limit) this.events.splice(0, this.events.length - this.limit);
  }

  since(mark: number): LiveEvent[] {
    return this.events.filter((event) => event.seq > mark);
  }
}

/** The newest decisions, and the token of the page behind them. */
export interface Decisions {
  items: readonly Decision[];
  older: string | null;
}

const DECISIONS_AT_ONCE = 200;
const TRIALS_MS = 5000;

/** Adds the next older page to the decisions that are shown. */
export async function readOlderDecisions(client: QueryClient, id: string): Promise<void> {
  const token = client.getQueryData<Decisions>(keys.decisions(id))?.older;
  if (!token) return;
  const page = await api.decisions(id, { page_size: DECISIONS_AT_ONCE, page_token: token });
  client.setQueryData<Decisions>(keys.decisions(id), (old) => {
    if (!old || old.older !== token) return old;
    const have = new Set(old.items.map((decision) => decision.seq));
    return { items: [...old.items, ...page.items.filter((decision) => !have.has(decision.seq))], older: page.next_page_token };
  });
}

/** Where the weights of a trial's segment come from; undefined where it began with its own or with none, or is not known yet. */
export type SourceOf = (trial: number, ordinal: number) => Source | undefined;

/** Read where exploits took their weights from; asks the service only if `wanted`, that is where there are exploits. */
export function useSources(live: LiveExperiment, wanted: boolean): { segments: readonly SegmentItem[]; source: SourceOf } {
  const id = live.experiment.data?.id ?? "";
  const query = useQuery({
    queryKey: keys.segments(id), queryFn: ({ signal }) => api.segments(id, signal), enabled: wanted && id !== "", placeholderData: keepPreviousData,
  });
  const segments = query.data;
  return useMemo(() => {
    const found = new Map<string, Source>();
    for (const one of segments ?? NO_SEGMENTS) {
      if (one.cause !== "exploit" || one.source_trial_number === null) continue;
      found.set(`${one.trial_number}.${one.ordinal}`, { trial: one.source_trial_number, ordinal: one.source_ordinal, iteration: one.start_iteration });
    }
    return { segments: segments ?? NO_SEGMENTS, source: (trial: number, ordinal: number) => found.get(`${trial}.${ordinal}`) };
  }, [segments]);
}

const NO_SEGMENTS: readonly SegmentItem[] = [];

export interface LiveExperiment {
  experiment: UseQueryResult<Experiment>;
  trials: UseQueryResult<readonly Trial[]>;
  decisions: UseQueryResult<Decisions>;
  stream: StreamState;
  recent: Recent;
}

export function useExperiment(id: string): LiveExperiment {
  const client = useQueryClient();
  const recent = useMemo(() => new Recent(), [id]);
  const [stream, setStream] = useState<StreamState>("connecting");

  const experiment = useQuery({
    queryKey: keys.experiment(id), queryFn: ({ signal }) => api.experiment(id, signal), refetchOnMount: "always",
    // Events ask for it sooner; this is for what comes without one, and for a stream that is down.
    refetchInterval: ({ state }) => (state.data && experimentEnded(state.data.state) ? false : 5000),
  });
  // The rest is read after the experiment, whose last_event_seq is where the stream begins, so that nothing falls in between.
  const ready = experiment.data !== undefined;
  const frame = experiment.data;
  const live = ready && !experimentEnded(experiment.data.state);

  const trials = useQuery({
    queryKey: keys.trials(id),
    queryFn: async ({ signal }): Promise<readonly Trial[]> => {
      const mark = recent.mark;
      const read = await api.trials(id, signal);
      return foldTrials(read, recent.since(mark), frame!);
    },
    enabled: ready,
    refetchOnMount: "always",
    structuralSharing: false,
  });
  const decisions = useQuery({
    queryKey: keys.decisions(id),
    queryFn: async ({ signal }): Promise<Decisions> => {
      const mark = recent.mark;
      const page = await api.decisions(id, { page_size: DECISIONS_AT_ONCE }, signal);
      return { items: foldDecisions(page.items, recent.since(mark)), older: page.next_page_token };
    },
    enabled: ready,
    refetchOnMount: "always",
    structuralSharing: false,
  });

  useEffect(() => {
    if (!live) return;
    const start = client.getQueryData<Experiment>(keys.experiment(id))!;
    const reread = throttle(() => void client.invalidateQueries({ queryKey: keys.experiment(id), exact: true }), 1000);
    const rereadSegments = throttle(() => void client.invalidateQueries({ queryKey: keys.segments(id) }), 2000);
    const connection = new Stream((after) => api.eventsUrl(id, after), start.last_event_seq, {
      onEvents: (events) => {
        recent.add(events);
        apply(client, id, events);
        if (events.some((event) => event.type !== "checkpoint_saved" && event.type !== "model_fitted")) reread();
        if (events.some((event) => event.type === "segment_started" && event.segment > 1)) rereadSegments();
      },
      onState: setStream,
      onAway: async () => {
        await client.refetchQueries({ queryKey: keys.experiment(id), exact: true });
        const seq = client.getQueryData<Experiment>(keys.experiment(id))?.last_event_seq ?? 0;
        void client.invalidateQueries({ queryKey: keys.experiment(id), predicate: (query) => query.queryKey.length > 2 });
        return seq;
      },
    });
    // States, values and reasons come with the events; what is measured on the way (time spent, checkpoints) with these reads.
    // Not by refetchInterval, which begins anew with every event.
    let read = Date.now();
    const timer = setInterval(() => {
      const size = client.getQueryData<readonly Trial[]>(keys.trials(id))?.length ?? 0;
      if (document.hidden || Date.now() - read < Math.max(TRIALS_MS, 10 * size)) return;
      read = Date.now();
      void client.invalidateQueries({ queryKey: keys.trials(id) });
    }, 1000);
    return () => {
      clearInterval(timer);
      reread.cancel();
      rereadSegments.cancel();
      connection.close();
      // What the last seconds brought may have come between two events: read once more how it ended.
      void client.invalidateQueries({ queryKey: keys.experiment(id), refetchType: "active" });
    };
  }, [client, id, live, recent]);

  // Points on the time axis count from the start, which is only known after it: those that came in before are read again.
  const startedAt = frame?.started_at ?? null;
  const wasPending = useRef(false);
  useEffect(() => {
    if (wasPending.current && startedAt !== null) void client.invalidateQueries({ queryKey: keys.allCurves(id) });
    wasPending.current = ready && startedAt === null;
  }, [client, id, ready, startedAt]);

  return { experiment, trials, decisions, stream, recent };
}

export function useCurves(live: LiveExperiment, metric: string, x: XAxis): UseQueryResult<Curves> {
  const frame = live.experiment.data;
  return useQuery({
    queryKey: keys.curves(frame?.id ?? "", metric, x),
    queryFn: async ({ signal }) => {
      const mark = live.recent.mark;
      const read = await api.curves(frame!.id, metric, x, signal);
      return foldCurves(read, live.recent.since(mark), frame!);
    },
    enabled: frame !== undefined && metric !== "",
    refetchOnMount: "always",
    structuralSharing: false,
    placeholderData: keepPreviousData,
  });
}

/** Folds events into every view of the experiment that is in the cache. */
function apply(client: QueryClient, id: string, events: LiveEvent[]): void {
  const frame: Frame | undefined = client.getQueryData<Experiment>(keys.experiment(id));
  if (!frame) return;
  client.setQueryData<readonly Trial[]>(keys.trials(id), (old) => old && foldTrials(old, events, frame));
  client.setQueryData<Decisions>(keys.decisions(id), (old) => old && { ...old, items: foldDecisions(old.items, events) });
  client.setQueriesData<Curves>({ queryKey: keys.allCurves(id) }, (old) => old && foldCurves(old, events, frame));
  const trials = client.getQueriesData<TrialWithSegments>({ queryKey: ["trial"], predicate: (query) => query.queryKey.length === 2 });
  for (const [key, trial] of trials) {
    if (trial?.experiment_id !== id) continue;
    const own = events.filter((event) => event.trial_number === trial.number);
    if (own.length === 0) continue;
    client.setQueryData(key, own.reduce((old, event) => foldTrial(old, event, frame), trial));
    // Segments and checkpoints are not told whole by events.
    if (own.some((event) => event.type !== "reported")) void client.invalidateQueries({ queryKey: key });
  }
}

/** Calls at once, then at most every `ms`; a call in between is made up for at the end. */
function throttle(call: () => void, ms: number): (() => void) & { cancel: () => void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let again = false;
  const run = () => {
    if (timer !== undefined) {
      again = true;
      return;
    }
    call();
    timer = setTimeout(() => {
      timer = undefined;
      if (again) {
        again = false;
        run();
      }
    }, ms);
  };
  return Object.assign(run, { cancel: () => clearTimeout(timer) });
}
