/** A search as the service would tell of it: ASHA over real shapes of curves, with a failure, a retry, a pause and an exploit. */

import type { Curves, Decision, Failure, Trial, XAxis } from "../api/types";
import { foldCurves, foldDecisions, foldTrials, type Frame, type LiveEvent } from "../live/events";

export const FRAME: Frame = { id: "exp_1", metric: "accuracy", mode: "max", started_at: "2026-03-01T10:00:00Z" };

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

const RUNS: ReadonlySet<Decision["kind"]> = new Set(["start", "resume", "retry", "exploit"]);

/** All events of a run with `trials` trials, two at a time. */
export function story(trials: number, seed = 1): LiveEvent[] {
  const next = random(seed);
  const events: LiveEvent[] = [];
  let clock = Date.parse(FRAME.started_at!);
  const stamp = () => ({ seq: events.length + 1, time: new Date(clock).toISOString() });
  const decide = (kind: Decision["kind"], number: number | null, reason: string, payload: Decision["payload"] = {}) =>
    events.push({ type: "decision", ...stamp(), kind, trial_number: number, trial_id: number === null ? null : `trl_${number}`, reason, state: RUNS.has(kind) ? "pending" : "done", payload });

  interface Running { number: number; rate: number; top: number; iteration: number; segment: number }
  const running: Running[] = [];
  let started = 0;
  while (started < trials || running.length > 0) {
    clock += Math.round(200 + 800 * next());
    if (running.length < 2 && started < trials) {
      const trial: Running = { number: started++, rate: 0.1 + next(), top: 0.4 + 0.6 * next(), iteration: 0, segment: 1 };
      decide("start", trial.number, "a worker group is free", { params: { lr: trial.rate, width: trial.number % 2 ? 32 : 64 } });
      events.push({ type: "waiting", ...stamp(), trial_number: trial.number, segment: 1, reason: "waits for 2 CPU" });
      events.push({ type: "segment_started", ...stamp(), trial_number: trial.number, segment: 1 });
      running.push(trial);
      continue;
    }
    const trial = running[Math.floor(next() * running.length)]!;
    trial.iteration += 1;
    const value = trial.top * (1 - Math.exp(-trial.rate * trial.iteration)) + 0.02 * next();
    const number = trial.number;
    const diverged = next() < 0.02;
    events.push({
      type: "reported", ...stamp(), trial_number: number, segment: trial.segment, iteration: trial.iteration,
      metrics: { accuracy: diverged ? null : value, loss: 1 - value },
    });
    const end = (kind: "stop" | "complete", reason: string) => {
      decide(kind, number, reason);
      events.push({ type: "segment_ended", ...stamp(), trial_number: number, segment: trial.segment, outcome: "left" });
      running.splice(running.indexOf(trial), 1);
    };
    const again = (kind: "retry" | "resume" | "exploit", reason: string, from: number) => {
      decide(kind, number, reason, kind === "exploit" ? { params: { lr: trial.rate * 1.2, width: 16 }, donor: 0 } : {});
      trial.segment += 1;
      trial.iteration = from;
      events.push({ type: "segment_started", ...stamp(), trial_number: number, segment: trial.segment });
    };
    const chance = next();
    if (trial.iteration >= 27) end("complete", "reached max_t=27");
    else if ([1, 3, 9].includes(trial.iteration) && chance < 0.5) end("stop", `stopped at iteration ${trial.iteration}: ${value} is below the cut`);
    else if (chance > 0.97) {
      const failure: Failure = { kind: "user", cause: "exception", message: "RuntimeError: boom", rank: 1, node: "a", pid: 7, traceback: "", log_tail: "", stacks: {} };
      events.push({ type: "segment_ended", ...stamp(), trial_number: number, segment: trial.segment, outcome: "failed", failure });
      again("retry", "rank 1 raised RuntimeError", Math.max(0, trial.iteration - 2));
    } else if (chance > 0.94) {
      decide("pause", number, "gives way to a better one");
      events.push({ type: "segment_ended", ...stamp(), trial_number: number, segment: trial.segment, outcome: "left" });
      again("resume", "the best not yet promoted one", trial.iteration);
    } else if (chance > 0.92 && number > 0) {
      events.push({ type: "segment_ended", ...stamp(), trial_number: number, segment: trial.segment, outcome: "left" });
      again("exploit", "takes over from trial 0", trial.iteration);
    }
  }
  decide("finish", null, "all samples have ended");
  return events;
}

export interface Views {
  trials: readonly Trial[];
  byStep: Curves;
  byTime: Curves;
  decisions: readonly Decision[];
}

export function nothing(): Views {
  const curves = (x: XAxis): Curves => ({ metric: "accuracy", mode: "max", x, width: 1, left_out: 0, series: [], best_so_far: { x: [], y: [] } });
  return { trials: [], byStep: curves("step"), byTime: curves("time"), decisions: [] };
}

export function fold(views: Views, events: LiveEvent[]): Views {
  return {
    trials: foldTrials(views.trials, events, FRAME),
    byStep: foldCurves(views.byStep, events, FRAME),
    byTime: foldCurves(views.byTime, events, FRAME),
    decisions: foldDecisions(views.decisions, events),
  };
}
