import { describe, expect, it } from "vitest";
import { fold, FRAME, nothing, random, story } from "../test/run";
import { foldCurves, foldTrials, hasEnded, isBetter, type LiveEvent } from "./events";

const EVENTS = story(40);

describe("folding events", () => {
  it("gives the same views however the events are cut into batches", () => {
    const whole = fold(nothing(), EVENTS);
    const next = random(7);
    let pieces = nothing();
    for (let at = 0; at < EVENTS.length; ) {
      const size = 1 + Math.floor(next() * 9);
      pieces = fold(pieces, EVENTS.slice(at, at + size));
      at += size;
    }
    expect(pieces).toEqual(whole);
  });

  it("gives the same views when the stream begins before what was read", () => {
    const whole = fold(nothing(), EVENTS);
    for (const [from, read] of [[0, 50], [10, 11], [100, 180], [30, EVENTS.length], [EVENTS.length - 5, EVENTS.length]] as const) {
      const snapshot = fold(nothing(), EVENTS.slice(0, read));
      expect(fold(snapshot, EVENTS.slice(from))).toEqual(whole);
    }
  });

  it("knows why a segment began, from the decision before it", () => {
    const decided = new Map<string, string>();
    const ordinals = new Map<number, number>();
    for (const event of EVENTS) {
      if (event.type !== "decision" || typeof event.trial_number !== "number") continue;
      if (!["start", "retry", "resume", "exploit"].includes(event.kind)) continue;
      const ordinal = (ordinals.get(event.trial_number) ?? 0) + 1;
      ordinals.set(event.trial_number, ordinal);
      decided.set(`${event.trial_number}.${ordinal}`, event.kind);
    }
    const segments = fold(nothing(), EVENTS).byStep.series.flatMap(({ number, segments }) => segments.map((segment) => ({ number, ...segment })));
    expect(segments.filter((segment) => segment.cause === "exploit").length).toBeGreaterThan(0);
    for (const { number, ordinal, cause } of segments) expect(cause).toBe(decided.get(`${number}.${ordinal}`));
  });

  it("leaves untouched what no event is about", () => {
    const early = EVENTS.findIndex((event) => event.type === "reported" && event.trial_number === 5);
    const before = fold(nothing(), EVENTS.slice(0, early));
    const after = fold(before, [EVENTS[early]!]);
    expect(after.byStep.series.filter((series, i) => series !== before.byStep.series[i]).map((series) => series.number)).toEqual([5]);
    expect(after.trials.filter((trial, i) => trial !== before.trials[i]).map((trial) => trial.number)).toEqual([5]);
    expect(after.decisions).toBe(before.decisions);
    expect(fold(after, [])).toEqual(after);
    expect(foldCurves(after.byStep, [], FRAME)).toBe(after.byStep);
  });

  it("ends every trial with its state, its reason and its best value", () => {
    const { trials } = fold(nothing(), EVENTS);
    expect(trials.map((trial) => trial.number)).toEqual(Array.from({ length: 40 }, (_, i) => i));
    for (const trial of trials) {
      expect(hasEnded(trial.state)).toBe(true);
      expect(trial.reason).toMatch(trial.state === "stopped" ? /^stopped at iteration/ : /^reached max_t/);
      expect(trial.waiting).toBeNull();
      const values = EVENTS.flatMap((event) => (event.type === "reported" && event.trial_number === trial.number ? [event.metrics["accuracy"] ?? -1] : []));
      expect(trial.best_value ?? -1).toBe(Math.max(...values));
    }
    expect(trials.some((trial) => trial.error?.message === "RuntimeError: boom")).toBe(true);
    expect(trials.some((trial) => trial.params["width"] === 16)).toBe(true);
  });

  it("takes a decision as carried out once its trial runs", () => {
    const [start, waiting, started] = EVENTS.slice(0, 3);
    const before = fold(nothing(), [start!, waiting!]);
    expect(before.decisions.map((decision) => decision.state)).toEqual(["pending"]);
    expect(fold(before, [started!]).decisions.map((decision) => decision.state)).toEqual(["done"]);
    expect(fold(nothing(), EVENTS).decisions.filter((decision) => decision.state === "pending")).toEqual([]);
  });

  it("starts a new piece of the curve with every segment and keeps gaps", () => {
    const { byStep } = fold(nothing(), EVENTS);
    const segments = byStep.series.flatMap((series) => series.segments);
    expect(Math.max(...segments.map((segment) => segment.ordinal))).toBeGreaterThan(1);
    for (const series of byStep.series) expect(series.segments.map((segment) => segment.ordinal)).toEqual(series.segments.map((_, i) => i + 1));
    expect(segments.some((segment) => segment.y.includes(null))).toBe(true);
  });

  it("keeps the best so far as a rising line over the seconds since the start", () => {
    const { x, y } = fold(nothing(), EVENTS).byStep.best_so_far;
    const values = EVENTS.flatMap((event) => (event.type === "reported" ? [event.metrics["accuracy"] ?? -1] : []));
    expect(y[y.length - 1]).toBe(Math.max(...values));
    expect(y).toEqual([...y].sort((a, b) => a! - b!));
    expect(x).toEqual([...x].sort((a, b) => a - b));
    expect(x[0]).toBeGreaterThan(0);
  });

  it("shows the first report of a trial that was not in the list of curves", () => {
    const report = EVENTS.find((event) => event.type === "reported")!;
    const { series } = foldCurves(nothing().byStep, [report], FRAME);
    expect(series).toHaveLength(1);
    expect(series[0]!.segments).toHaveLength(1);
  });

  it("keeps the newest value of each metric, where not every report has all of them", () => {
    const [start, waiting, started] = EVENTS.slice(0, 3);
    const report = EVENTS.find((event) => event.type === "reported" && event.trial_number === 0) as Extract<LiveEvent, { type: "reported" }>;
    const bare = { ...report, seq: report.seq + 1, iteration: report.iteration + 1, metrics: { train_loss: 0.5 } };
    const [trial] = foldTrials([], [start!, waiting!, started!, report, bare], FRAME);
    expect(trial!.last).toEqual({ ...report.metrics, train_loss: 0.5 });
    expect([trial!.iteration, trial!.last_value]).toEqual([bare.iteration, report.metrics["accuracy"]]);
  });

  it("does not bring a trial back that was stopped while it started", () => {
    const [start, waiting, started] = EVENTS.slice(0, 3);
    const cancel = { ...start!, seq: 3, kind: "cancel" as const, reason: "by a user" };
    const [trial] = foldTrials([], [start!, waiting!, cancel as never, { ...started!, seq: 4 }], FRAME);
    expect(trial!.state).toBe("cancelled");
  });
});

describe("isBetter", () => {
  it("never takes what is no number", () => {
    for (const mode of ["min", "max"] as const) {
      expect(isBetter(null, 1, mode)).toBe(false);
      expect(isBetter(NaN, null, mode)).toBe(false);
      expect(isBetter(Infinity, 1, mode)).toBe(false);
      expect(isBetter(1, null, mode)).toBe(true);
    }
    expect(isBetter(2, 1, "max")).toBe(true);
    expect(isBetter(2, 1, "min")).toBe(false);
  });
});
