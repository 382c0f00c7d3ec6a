/**
 * Server-sent events folded into what the page shows. Pure: old view and events in, new view out, only what changed is new.
 *
 * A view that was read at event 100 may be given the events from 90 on: after the newest of them it is the same as if it had
 * been given those from 101 on. So reads and the stream need not be lined up exactly.
 */

import type {
  BestSoFar, CurveSegment, Curves, Decision, Experiment, ExperimentState, Failure, Params, Series, Trial, TrialState,
} from "../api/types";

interface Stamp {
  seq: number;
  time: string;
  trial_number?: number | null;
}

/** `type` is the name of the server-sent event; the rest is its data. */
export type LiveEvent =
  | (Stamp & { type: "reported"; segment: number; iteration: number; metrics: Record<string, number | null> })
  | (Decision & { type: "decision" })
  | (Stamp & { type: "segment_started"; segment: number })
  | (Stamp & { type: "segment_ended"; segment: number; outcome: string; failure?: Failure | null })
  | (Stamp & { type: "waiting"; segment: number; reason: string })
  | (Stamp & { type: "experiment"; state: ExperimentState })
  | (Stamp & { type: SilentKind });

/** These change nothing that is shown by itself, but say where the stream has got to. */
type SilentKind =
  | "driver_started" | "checkpoint_saved" | "checkpoint_deleted" | "suggested" | "model_fitted" | "commanded" | "budget_spent";

/** A browser only hears the events whose names it listens to. */
export const EVENT_TYPES = [
  "reported", "decision", "segment_started", "segment_ended", "waiting", "experiment", "checkpoint_saved", "checkpoint_deleted",
  "commanded", "driver_started", "suggested", "model_fitted", "budget_spent",
] as const satisfies readonly LiveEvent["type"][];

/** What the folds need to know of the experiment. */
export type Frame = Pick<Experiment, "id" | "metric" | "mode" | "started_at">;

export function isBetter(value: number | null | undefined, than: number | null | undefined, mode: "min" | "max"): boolean {
  if (value === null || value === undefined || !Number.isFinite(value)) return false;
  if (than === null || than === undefined) return true;
  return mode === "max" ? value > than : value < than;
}

/** Trials by number, as the list of trials gives them. */
export function foldTrials(trials: readonly Trial[], events: readonly LiveEvent[], frame: Frame): readonly Trial[] {
  const known = new Map(trials.map((trial) => [trial.number, trial]));
  const changed = new Map<number, Trial>();
  for (const event of events) {
    const number = event.trial_number;
    if (number === null || number === undefined) continue;
    const old = changed.get(number) ?? known.get(number);
    const next = old ? foldTrial(old, event, frame) : newTrial(event, frame);
    if (next && next !== old) changed.set(number, next);
  }
  if (changed.size === 0) return trials;
  const added = [...changed.values()].filter((trial) => !known.has(trial.number)).sort((a, b) => a.number - b.number);
  return [...trials.map((trial) => changed.get(trial.number) ?? trial), ...added];
}

export function foldTrial<T extends Trial>(trial: T, event: LiveEvent, frame: Frame): T {
  switch (event.type) {
    case "reported": {
      const value = event.metrics[frame.metric] ?? null;
      // Which reports keep within constraints is for the service to say: it comes when the trials are read again.
      const better = trial.feasible === null && isBetter(value, trial.best_value, frame.mode);
      return {
        ...trial,
        iteration: event.iteration,
        last: { ...trial.last, ...event.metrics },
        last_value: value ?? trial.last_value,
        ...(better ? { best_value: value, best_iteration: event.iteration } : {}),
      };
    }
    case "decision":
      return afterDecision(trial, event);
    case "segment_started":
      // One that was stopped while it started stays stopped.
      return { ...trial, state: trial.state === "pending" ? "running" : trial.state, waiting: null, started_at: trial.started_at ?? event.time };
    case "segment_ended":
      return { ...trial, waiting: null, ...(event.failure ? { error: event.failure } : {}) };
    case "waiting":
      return { ...trial, waiting: event.reason };
    default:
      return trial;
  }
}

const STATE_AFTER: Partial<Record<Decision["kind"], TrialState>> = {
  start: "pending", resume: "pending", retry: "pending",
  pause: "paused", stop: "stopped", complete: "completed", fail: "failed", cancel: "cancelled",
};

const CAUSES = ["start", "resume", "retry", "exploit"] as const satisfies readonly CurveSegment["cause"][];

const ENDED: ReadonlySet<TrialState> = new Set(["completed", "stopped", "failed", "cancelled"]);

export function hasEnded(state: TrialState): boolean {
  return ENDED.has(state);
}

function afterDecision<T extends Trial>(trial: T, decision: Decision): T {
  if (decision.kind === "exploit") return { ...trial, reason: decision.reason, params: paramsOf(decision.payload["params"]) ?? trial.params };
  const state = STATE_AFTER[decision.kind];
  if (!state) return trial;
  return { ...trial, state, reason: decision.reason, ...(hasEnded(state) ? { ended_at: decision.time, waiting: null } : {}) };
}

function paramsOf(value: unknown): Params | null {
  return value !== null && typeof value === "object" ? (value as Params) : null;
}

function newTrial(event: LiveEvent, frame: Frame): Trial | undefined {
  if (event.type !== "decision" || event.kind !== "start" || event.trial_number === null || event.trial_id === null) return undefined;
  return {
    id: event.trial_id, experiment_id: frame.id, number: event.trial_number, state: "pending",
    params: paramsOf(event.payload["params"]) ?? {}, iteration: 0, last: {}, last_value: null, best_value: null, best_iteration: null,
    best_params: {}, feasible: null, running_s: 0, failures: 0, reason: event.reason, waiting: null, error: null, checkpoint: null,
    created_at: event.time, started_at: null, ended_at: null,
  };
}

/** Curves with the reported points appended: a report adds one point to one segment, the others stay the same objects. */
export function foldCurves(curves: Curves, events: readonly LiveEvent[], frame: Frame): Curves {
  const at = new Map(curves.series.map((series, i) => [series.number, i]));
  let list: Series[] | null = null;
  let best = curves.best_so_far;
  for (const event of events) {
    const number = event.trial_number;
    if (number === null || number === undefined) continue;
    const i = at.get(number);
    const old = i === undefined ? undefined : (list ?? curves.series)[i];
    const next = old ? foldSeries(old, event, curves, frame) : newSeries(event, curves, frame);
    if (next && next !== old) {
      list ??= [...curves.series];
      if (i === undefined) {
        at.set(number, list.length);
        list.push(next);
      } else {
        list[i] = next;
      }
    }
    if (event.type === "reported" && curves.metric === frame.metric) best = foldBest(best, event.metrics[frame.metric], event.time, frame);
  }
  return list === null && best === curves.best_so_far ? curves : { ...curves, series: list ?? curves.series, best_so_far: best };
}

/** A series of which a further segment was decided on and has not reported yet: why it begins, only the decision tells. */
type Foretold = Series & { next?: CurveSegment["cause"] };

function foldSeries(series: Foretold, event: LiveEvent, curves: Curves, frame: Frame): Foretold {
  if (event.type === "decision") {
    const state = STATE_AFTER[event.kind] ?? series.state;
    const next = CAUSES.find((cause) => cause === event.kind) ?? series.next;
    return state === series.state && next === series.next ? series : { ...series, state, ...(next && { next }) };
  }
  if (event.type === "segment_started") return series.state === "pending" ? { ...series, state: "running" } : series;
  if (event.type !== "reported" || !(curves.metric in event.metrics)) return series;
  const x = curves.x === "step" ? event.iteration : secondsSince(frame.started_at, event.time);
  const y = event.metrics[curves.metric] ?? null;
  const { next, ...now } = series;
  const segments = appendPoint(series.segments, event.segment, next ?? (event.segment === 1 ? "start" : "resume"), x, y);
  if (segments === series.segments) return next ? now : series;
  // Whichever metric is drawn, trials are ranked by the objective.
  const value = event.metrics[frame.metric];
  return { ...now, segments, best_value: isBetter(value, series.best_value, frame.mode) ? value! : series.best_value };
}

function appendPoint(segments: CurveSegment[], ordinal: number, cause: CurveSegment["cause"], x: number, y: number | null): CurveSegment[] {
  const i = segments.findIndex((segment) => segment.ordinal === ordinal);
  const segment = segments[i];
  if (!segment) return [...segments, { ordinal, cause, x: [x], y: [y] }];
  const last = segment.x[segment.x.length - 1];
  if (last !== undefined && x <= last) return segments;
  const copy = [...segments];
  copy[i] = { ...segment, x: [...segment.x, x], y: [...segment.y, y] };
  return copy;
}

/** Curves are read without trials that have not reported yet: one may show up with its start or with its first report. */
function newSeries(event: LiveEvent, curves: Curves, frame: Frame): Series | undefined {
  if (event.trial_number === null || event.trial_number === undefined) return undefined;
  if (event.type === "decision" && event.kind === "start" && event.trial_id !== null) {
    return { trial_id: event.trial_id, number: event.trial_number, state: "pending", best_value: null, segments: [] };
  }
  if (event.type !== "reported") return undefined;
  return foldSeries({ trial_id: "", number: event.trial_number, state: "running", best_value: null, segments: [] }, event, curves, frame);
}

function foldBest(best: BestSoFar, value: number | null | undefined, time: string, frame: Frame): BestSoFar {
  const old = best.y[best.y.length - 1];
  if (!isBetter(value, old, frame.mode)) return best;
  return { x: [...best.x, secondsSince(frame.started_at, time)], y: [...best.y, value!] };
}

function secondsSince(start: string | null, time: string): number {
  return start === null ? 0 : Math.max(0, (Date.parse(time) - Date.parse(start)) / 1000);
}

/** Decisions, newest first. What was to run a trial is carried out as soon as that trial runs. */
export function foldDecisions(decisions: readonly Decision[], events: readonly LiveEvent[]): readonly Decision[] {
  const fresh = new Map<number, Decision>();
  const startedAt = new Map<number, number>();
  for (const event of events) {
    if (event.type === "segment_started" && typeof event.trial_number === "number") startedAt.set(event.trial_number, event.seq);
    if (event.type !== "decision") continue;
    const { type: _, ...decision } = event;
    fresh.set(decision.seq, decision);
  }
  const carriedOut = (decision: Decision) =>
    decision.state === "pending" && decision.trial_number !== null && (startedAt.get(decision.trial_number) ?? -1) > decision.seq;
  if (fresh.size === 0 && !decisions.some(carriedOut)) return decisions;
  const all = fresh.size === 0 ? decisions : [...decisions.filter((d) => !fresh.has(d.seq)), ...fresh.values()];
  return all.map((d) => (carriedOut(d) ? { ...d, state: "done" as const } : d)).sort((a, b) => b.seq - a.seq);
}
