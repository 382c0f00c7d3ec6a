/// <reference types="node" />
import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { Timeline } from "../api/types";
import { TONE } from "../parts/common/StateBadge";
import {
  boxOf,
  byDevice,
  byTrial,
  CROSS,
  crossAt,
  FAILED,
  PHASES,
  shares,
  spanAt,
  timelineRows,
  trainedFor,
  wasteWords,
  xOf,
  type Frame,
} from "./timeline";

const span = (phase: "waiting" | "running" | "idle", start: number, end: number, trial: number | null = 0) => ({
  phase,
  start,
  end,
  trial_number: trial,
  segment: trial === null ? null : 1,
});

const TIMELINE: Timeline = {
  started_at: "2026-01-01T00:00:00Z",
  duration_s: 100,
  pauses: [],
  trials: [
    {
      trial_number: 0,
      trial_id: "trl_0",
      state: "completed",
      failed_at: [],
      spans: [span("waiting", 0, 20), span("running", 20, 100)],
    },
    { trial_number: 1, trial_id: "trl_1", state: "running", failed_at: [50], spans: [span("running", 50, 50.001, 1)] },
  ],
  devices: [{ host: "a", name: "GPU 0", busy: 0.8, spans: [span("idle", 0, 20, null), span("running", 20, 100)] }],
  totals: { waiting: 20, running: 80 },
  total: 2,
};
const FRAME: Frame = { left: 100, right: 300, top: 10, lane: 20, bar: 12, seconds: 100 };

describe("a timeline", () => {
  it("has a lane for each trial, or for each device with how busy it was", () => {
    expect(byTrial(TIMELINE).map(({ label, trial }) => [label, trial])).toEqual([
      ["trial 0", 0],
      ["trial 1", 1],
    ]);
    expect(byDevice(TIMELINE)[0]!.label).toBe("a GPU 0 · 80 %");
  });

  it("draws waiting thinner than running, and the shortest span one pixel wide", () => {
    const [first, second] = byTrial(TIMELINE);
    const [waiting, running] = first!.spans.map((one) => boxOf(FRAME, 0, one));
    expect([waiting!.x, waiting!.width, running!.x, running!.width]).toEqual([100, 40, 140, 160]);
    expect(waiting!.height).toBeLessThan(running!.height / 2);
    expect(boxOf(FRAME, 1, second!.spans[0]!)).toEqual({ x: xOf(FRAME, 50), y: 34, width: 1, height: 12 });
  });

  it("marks where segments failed, in the color of failures, and within the chart", () => {
    const [completed, retried] = byTrial(TIMELINE);
    expect([completed!.failedAt, retried!.failedAt]).toEqual([[], [50]]);
    expect([completed!.state, retried!.state]).toEqual(["completed", "running"]);
    expect(crossAt(FRAME, 1, 50)).toEqual({ x: 200, y: 40 });
    expect(crossAt(FRAME, 0, 100).x).toBe(300 - CROSS);
    expect(crossAt(FRAME, 0, 0).x).toBe(100 + CROSS);
  });

  it("draws a pause as a light band, which is neither as high as a run nor as thin as a wait", () => {
    expect(PHASES.paused.band).toBe(true);
    expect(Object.entries(PHASES).filter(([, { band }]) => band).length).toBe(1);
    expect(PHASES.paused.share).toBeGreaterThan(PHASES.waiting.share);
    expect(PHASES.paused.share).toBeLessThan(PHASES.running.share);
  });

  it("counts running and checkpointing as training", () => expect(trainedFor(byTrial(TIMELINE)[0]!)).toBe(80));

  it("finds the span at a point", () => {
    const lanes = byTrial(TIMELINE);
    expect(spanAt(FRAME, lanes, 120, 15)?.span.phase).toBe("waiting");
    expect(spanAt(FRAME, lanes, 200, 15)?.span.phase).toBe("running");
    expect(spanAt(FRAME, lanes, 201, 35)?.lane.trial).toBe(1);
    expect(spanAt(FRAME, lanes, 250, 35)).toBeNull();
    expect(spanAt(FRAME, lanes, 200, 95)).toBeNull();
    expect(spanAt(FRAME, lanes, 20, 15)).toBeNull();
  });

  it("says how the time was spent", () => {
    expect(shares(TIMELINE.totals)).toEqual([
      { phase: "running", seconds: 80, share: 0.8 },
      { phase: "waiting", seconds: 20, share: 0.2 },
    ]);
    expect(shares({})).toEqual([]);
  });

  it("has the same colors for its phases as for the states of trials, but not that of failures", () => {
    const tones = readFileSync("src/parts/common/parts.module.css", "utf8");
    const colours = new Map(
      [...tones.matchAll(/\[data-tone="(\w+)"\] \{\s*--tone: light-dark\((#\w+), (#\w+)\)/g)].map(
        ([, tone, light, dark]) => [tone, [light, dark]],
      ),
    );
    const phase = (name: keyof typeof PHASES) => [PHASES[name].light, PHASES[name].dark];
    expect(phase("running")).toEqual(colours.get(TONE.running));
    expect(phase("paused")).toEqual(colours.get(TONE.paused));
    expect(phase("waiting")).toEqual(colours.get(TONE.pending));
    expect([FAILED.light, FAILED.dark]).toEqual(colours.get(TONE.failed));
    expect(Object.values(PHASES).map(({ light }) => light)).not.toContain(colours.get(TONE.failed)![0]);
  });

  it("is a table of its spans", () => {
    expect(timelineRows(byDevice(TIMELINE))).toEqual([
      ["lane", "trial", "segment", "phase", "start_s", "end_s"],
      ["a GPU 0 · 80 %", "", "", "idle", 0, 20],
      ["a GPU 0 · 80 %", 0, 1, "running", 20, 100],
    ]);
  });
});

describe("the waste of a search", () => {
  it("is named if starting and waiting took more than half of the time", () => {
    expect(wasteWords({ starting: 90, waiting: 24, running: 80, checkpointing: 6, paused: 900 })).toBe(
      "57 % of the time of all trials went into starting and waiting for resources",
    );
    expect(wasteWords({ waiting: 60, running: 40 })).toBe(
      "60 % of the time of all trials went into waiting for resources",
    );
    expect(wasteWords({ starting: 50, running: 50 })).toBeNull();
    expect(wasteWords({ starting: 4, running: 1 })).toBeNull();
  });
});
