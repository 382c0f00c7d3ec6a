/**
 * A search as the service would report it: ASHA over real shapes of curves, with a failure, a retry, a pause and an exploit.
 * Every step is what one commit changed.
 */

import { STEP, type Across } from "../curves/across";
import type { Changes, Curves, Decision, Failure, Mode, Point, SegmentItem, Trial } from "../api/types";
import { withCurves, withDecisions, withSegments, withTrials } from "../live/changes";

const STARTED_AT = "2026-03-01T10:00:00Z";

/** Mulberry32: small, seeded, good enough to shuffle a story. */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function isBetter(value: number | null, than: number | null, mode: Mode): boolean {
  if (value === null) return false;
  return than === null || (mode === "max" ? value > than : value < than);
}

interface Running {
  trial: Trial;
  rate: number;
  top: number;
  segment: SegmentItem;
  pending: Decision | null;
}

/** Return the changes of a run with `trials` trials, step by step, two trials at a time. */
export function story(trials: number, seed = 1): Changes[] {
  const next = random(seed);
  const steps: Changes[] = [];
  const begin = Date.parse(STARTED_AT);
  let clock = begin;
  let seq = 0;
  let best: number | null = null;
  const now = () => new Date(clock).toISOString();
  const step = (parts: Partial<Changes>) => {
    const since = steps[steps.length - 1]?.seq ?? 0;
    steps.push({
      since,
      seq,
      reset: false,
      experiment: null,
      trials: [],
      segments: [],
      decisions: [],
      points: [],
      best: [],
      ...parts,
    });
  };
  const decide = (
    kind: Decision["kind"],
    trial: Trial | null,
    reason: string,
    state: Decision["state"] = "done",
  ): Decision => {
    seq += 1;
    const payload = kind === "exploit" ? { params: trial!.params, donor: 0 } : {};
    return {
      seq,
      time: now(),
      kind,
      trial_number: trial?.number ?? null,
      trial_id: trial?.id ?? null,
      reason,
      state,
      payload,
    };
  };
  const newSegment = (trial: Trial, ordinal: number, cause: SegmentItem["cause"]): SegmentItem => ({
    trial_number: trial.number,
    ordinal,
    cause,
    start_iteration: trial.iteration,
    source_trial_number: cause === "exploit" ? 0 : null,
    source_ordinal: cause === "exploit" ? 1 : null,
    params: trial.params,
    warm: true,
    startup_s: null,
    held_s: null,
    created_at: now(),
    started_at: null,
    ended_at: null,
    outcome: null,
    workers: 1,
  });

  const running: Running[] = [];
  let started = 0;
  while (started < trials || running.length > 0) {
    clock += Math.round(200 + 800 * next());
    if (running.length < 2 && started < trials) {
      const number = started++;
      const rate = 0.1 + next();
      // A column that this search does not need may be missing.
      const trial = {
        id: `trl_${number}`,
        experiment_id: "exp_1",
        number,
        state: "pending",
        params: { lr: rate, width: number % 2 ? 32 : 64 },
        iteration: 0,
        last: {},
        last_value: null,
        best_value: null,
        best_iteration: null,
        space_revision: 0,
        best_params: {},
        feasible: null,
        repeat_of: null,
        reports: 0,
        running_s: 0,
        failures: 0,
        reason: "the limit on concurrent trials allows one more",
        waiting: null,
        error: null,
        checkpoint: null,
        created_at: now(),
        started_at: null,
        ended_at: null,
        actions: ["stop"],
      } as unknown as Trial;
      const pending = decide("start", trial, trial.reason, "pending");
      const one: Running = { trial, rate, top: 0.4 + 0.6 * next(), segment: newSegment(trial, 1, "start"), pending };
      step({ trials: [trial], segments: [one.segment], decisions: [pending] });
      seq += 1;
      one.trial = { ...trial, waiting: "waits for 2 CPU" };
      step({ trials: [one.trial] });
      enter(one);
      running.push(one);
      continue;
    }
    report(running[Math.floor(next() * running.length)]!);
  }
  step({ decisions: [decide("finish", null, "all samples have ended")] });
  return steps;

  /** The trial's newest segment has started. */
  function enter(one: Running): void {
    seq += 1;
    one.trial = { ...one.trial, state: "running", waiting: null, started_at: one.trial.started_at ?? now() };
    one.segment = { ...one.segment, started_at: now() };
    const decisions = one.pending ? [{ ...one.pending, state: "done" as const }] : [];
    one.pending = null;
    step({ trials: [one.trial], segments: [one.segment], decisions });
  }

  function report(one: Running): void {
    seq += 1;
    const iteration = one.trial.iteration + 1;
    const reached = one.top * (1 - Math.exp(-one.rate * iteration)) + 0.02 * next();
    const value = next() < 0.02 ? null : reached;
    const metrics = { accuracy: value, loss: 1 - reached };
    const better = isBetter(value, one.trial.best_value, "max");
    one.trial = {
      ...one.trial,
      iteration,
      reports: one.trial.reports + 1,
      last: { ...one.trial.last, ...metrics },
      last_value: value ?? one.trial.last_value,
      ...(better ? { best_value: value, best_iteration: iteration } : {}),
    };
    const seconds = (clock - begin) / 1000;
    const { number } = one.trial;
    const point: Point = {
      seq,
      trial_number: number,
      segment: one.segment.ordinal,
      cause: one.segment.cause,
      iteration,
      step: null,
      time: now(),
      seconds,
      trial_seconds: 10 * iteration,
      metrics,
    };
    const leads = value !== null && isBetter(value, best, "max");
    if (leads) best = value;
    const improved = leads ? [{ seq, metric: "accuracy", seconds, value }] : [];
    const chance = next();
    if (iteration >= 27) return end("completed", "complete", "reached max_t=27");
    if ([1, 3, 9].includes(iteration) && chance < 0.5)
      return end(
        "stopped",
        "stop",
        `stopped at iteration ${iteration}: accuracy ${value} is rank 2 of 2 there, and only the best continues`,
      );
    step({ trials: [one.trial], points: [point], best: improved });
    if (chance > 0.97) {
      const error: Failure = {
        kind: "user",
        cause: "exception",
        message: "RuntimeError: boom",
        rank: 1,
        node: "a",
        pid: 7,
        traceback: "",
        log_tail: "",
        stacks: {},
      };
      one.trial = { ...one.trial, error, iteration: Math.max(0, iteration - 2) };
      again("retry", "rank 1 raised RuntimeError", "failed");
    } else if (chance > 0.94) again("resume", "the best not yet promoted one", "left");
    else if (chance > 0.92 && number > 0) {
      one.trial = { ...one.trial, params: { lr: one.rate * 1.2, width: 16 } };
      again("exploit", "takes over from trial 0", "left");
    }

    function end(state: Trial["state"], kind: Decision["kind"], reason: string): void {
      const decision = decide(kind, one.trial, reason);
      seq += 1;
      one.trial = { ...one.trial, state, reason, ended_at: now() };
      one.segment = { ...one.segment, ended_at: now(), outcome: "left" };
      step({ trials: [one.trial], segments: [one.segment], points: [point], best: improved, decisions: [decision] });
      running.splice(running.indexOf(one), 1);
    }

    function again(cause: "retry" | "resume" | "exploit", reason: string, outcome: string): void {
      const ended = { ...one.segment, ended_at: now(), outcome };
      const decisions = cause === "resume" ? [decide("pause", one.trial, "gives way to a better one")] : [];
      one.pending = decide(cause, one.trial, reason, "pending");
      one.trial = { ...one.trial, state: "pending", reason };
      one.segment = newSegment(one.trial, one.segment.ordinal + 1, cause);
      step({ trials: [one.trial], segments: [ended, one.segment], decisions: [...decisions, one.pending] });
      enter(one);
    }
  }
}

export interface Views {
  trials: readonly Trial[];
  segments: readonly SegmentItem[];
  byStep: Curves;
  byTime: Curves;
  decisions: readonly Decision[];
}

export function nothing(): Views {
  const curves = (across: Across): Curves => ({
    metric: "accuracy",
    mode: "max",
    ...across,
    width: 1,
    left_out: 0,
    series: [],
    best_so_far: { x: [], y: [] },
  });
  return {
    trials: [],
    segments: [],
    byStep: curves(STEP),
    byTime: curves({ x: "time", x_metric: null }),
    decisions: [],
  };
}

/** The views with these changes put into them, as the page does it. */
export function after(views: Views, changes: readonly Changes[]): Views {
  return changes.reduce(
    (old, one) => ({
      trials: withTrials(old.trials, one),
      segments: withSegments(old.segments, one),
      byStep: withCurves(old.byStep, one),
      byTime: withCurves(old.byTime, one),
      decisions: withDecisions(old.decisions, one, true),
    }),
    views,
  );
}
