/** The positions of a timeline's spans on a canvas, and the span at a point. The service sends the spans. */

import type { Timeline, TrialState } from "../api/types";
import { INK } from "../curves/marks";

export type Span = Timeline["trials"][number]["spans"][number];
export type Phase = Span["phase"];

export interface Lane {
  /** The label at its left end. */
  label: string;
  /** The trial that a click on the label opens; null for a device. */
  trial: number | null;
  spans: readonly Span[];
  /** The state of the trial, and when segments of it failed, in seconds. */
  state?: TrialState;
  failedAt?: readonly number[];
}

/**
 * Every phase has its own height, so that phases can be told apart without color: the less is done in a phase, the
 * thinner it is. A pause is a light band with an outline (`band`). Colors mean the same as elsewhere: blue is running, amber is
 * paused, gray is waiting. No phase is red, because red means a failure: a cross where a segment failed.
 */
export const PHASES: Record<Phase, { words: string; light: string; dark: string; share: number; band?: true }> = {
  running: { words: "running", light: "#2563c9", dark: "#6ea8fe", share: 1 },
  starting: { words: "starting", light: "#0f8a8a", dark: "#4fd0cf", share: 0.7 },
  exploiting: { words: "exploit (takes over a checkpoint)", light: "#8a3ffc", dark: "#c4a1ff", share: 0.7 },
  restarting: { words: "starting again", light: "#4d7c0f", dark: "#a3d45c", share: 0.7 },
  checkpointing: { words: "checkpointing", light: "#a61e8c", dark: "#f59be6", share: 1 },
  waiting: { words: "waiting for resources", light: "#656d7b", dark: "#949cab", share: 0.34 },
  paused: { words: "trial paused", light: "#965900", dark: "#f0b429", share: 0.55, band: true },
  idle: { words: "idle", light: "#a3abba", dark: "#5b6475", share: 0.2 },
};

/** The maximum number of trials on one page of the timeline. */
export const MOST_TIMED = 200;

/** Below this many seconds over all trials, no waste is reported. */
const LEAST_S = 10;

export const ORDER = Object.keys(PHASES) as Phase[];

export function byTrial(timeline: Timeline): Lane[] {
  return timeline.trials.map((trial) => ({
    label: `trial ${trial.trial_number}`,
    trial: trial.trial_number,
    spans: trial.spans,
    state: trial.state,
    failedAt: trial.failed_at,
  }));
}

/** How opaque the inside of a band is. */
export const BAND = 0.22;

/** The color of failures, which is that of the state "failed". */
export const FAILED = { light: INK.light.failed, dark: INK.dark.failed };

/** Half the size of the cross that marks a failure, in pixels. */
export const CROSS = 4;

/** The center of the cross that marks a failure in the lane with this index. It stays within the chart. */
export function crossAt(frame: Frame, index: number, seconds: number): { x: number; y: number } {
  const x = Math.min(frame.right - CROSS, Math.max(frame.left + CROSS, xOf(frame, seconds)));
  return { x, y: frame.top + (index + 0.5) * frame.lane };
}

/** Return how long the trial of a lane trained: its running and checkpointing. */
export function trainedFor({ spans }: Pick<Lane, "spans">): number {
  return spans.reduce(
    (sum, { phase, start, end }) => sum + (phase === "running" || phase === "checkpointing" ? end - start : 0),
    0,
  );
}

export function byDevice(timeline: Timeline): Lane[] {
  return timeline.devices.map(({ host, name, busy, spans }) => ({
    label: `${host} ${name} · ${Math.round(100 * busy)} %`,
    trial: null,
    spans,
  }));
}

export interface Frame {
  /** The horizontal positions at which the lanes begin and end, in pixels. */
  left: number;
  right: number;
  top: number;
  lane: number;
  bar: number;
  /** Seconds that the axis spans. */
  seconds: number;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export function xOf(frame: Frame, seconds: number): number {
  return frame.left + (seconds / Math.max(frame.seconds, 1e-9)) * (frame.right - frame.left);
}

/** The box of a span in the lane with this index; at least a pixel wide, so that nothing that happened is invisible. */
export function boxOf(frame: Frame, index: number, span: Span): Box {
  const [x0, x1] = [xOf(frame, span.start), xOf(frame, span.end)];
  const height = Math.max(2, frame.bar * PHASES[span.phase].share);
  const middle = frame.top + (index + 0.5) * frame.lane;
  return { x: x0, y: middle - height / 2, width: Math.max(1, x1 - x0), height };
}

/** The lane and the span at a point; null where there is none. If several spans are there, it is the shortest one. */
export function spanAt(frame: Frame, lanes: readonly Lane[], x: number, y: number): { lane: Lane; span: Span } | null {
  const lane = lanes[Math.floor((y - frame.top) / frame.lane)];
  if (!lane || x < frame.left - 2 || x > frame.right + 2) return null;
  const seconds = ((x - frame.left) / Math.max(1, frame.right - frame.left)) * frame.seconds;
  const near = (2 / Math.max(1, frame.right - frame.left)) * frame.seconds;
  let found: Span | null = null;
  for (const span of lane.spans)
    if (
      span.start - near <= seconds &&
      span.end + near >= seconds &&
      (!found || span.end - span.start < found.end - found.start)
    )
      found = span;
  return found && { lane, span: found };
}

/** "41 %", and "< 1 %" for a share that is not 0 but rounds to it. */
export function shareWords(share: number): string {
  return share > 0 && share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`;
}

export interface Waste {
  phase: Phase;
  seconds: number;
  share: number;
}

/** Return what the time of all trials together was spent on, in the order of the legend. */
export function shares(totals: Timeline["totals"]): Waste[] {
  const all = ORDER.reduce((sum, phase) => sum + (totals[phase] ?? 0), 0);
  return ORDER.flatMap((phase) => {
    const seconds = totals[phase] ?? 0;
    return seconds > 0 ? [{ phase, seconds, share: seconds / all }] : [];
  });
}

/**
 * "57 % of the time of all trials went into starting and waiting" if that was more than half, to send the user to the
 * timeline; else null. Pauses do not count as waste.
 */
export function wasteWords(totals: Timeline["totals"]): string | null {
  const seconds = (phases: readonly Phase[]) => phases.reduce((sum, phase) => sum + (totals[phase] ?? 0), 0);
  const [start, wait] = [seconds(["starting", "restarting", "exploiting"]), seconds(["waiting"])];
  const all = start + wait + seconds(["running", "checkpointing"]);
  if (all < LEAST_S || start + wait <= all / 2) return null;
  const what = [start > 0 ? "starting" : "", wait > 0 ? "waiting for resources" : ""].filter(Boolean).join(" and ");
  const percent = Math.round((100 * (start + wait)) / all);
  return `${percent === 100 && start + wait < all ? "over 99" : percent} % of the time of all trials went into ${what}`;
}

export function timelineRows(lanes: readonly Lane[]): unknown[][] {
  const rows: unknown[][] = lanes.flatMap((lane) =>
    lane.spans.map((span) => [
      lane.label,
      span.trial_number ?? "",
      span.segment ?? "",
      span.phase,
      span.start,
      span.end,
    ]),
  );
  return [["lane", "trial", "segment", "phase", "start_s", "end_s"], ...rows];
}
