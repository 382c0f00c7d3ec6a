import { useComputedColorScheme } from "@mantine/core";
import { useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Timeline } from "../api/types";
import { INK } from "../curves/marks";
import { ticks } from "../curves/ticks";
import { duration } from "../format";
import { clear } from "./canvas";
import classes from "./charts.module.css";
import {
  BAND,
  boxOf,
  CROSS,
  crossAt,
  FAILED,
  PHASES,
  spanAt,
  trainedFor,
  xOf,
  type Frame,
  type Lane,
  type Span,
} from "./timeline";
import { useWidth } from "./useWidth";

interface TimelineChartProps {
  lanes: readonly Lane[];
  seconds: number;
  /** The times at which the experiment was paused. The axis leaves them out. */
  pauses: Timeline["pauses"];
  label: string;
  selected: number | null;
  onSelect: (number: number) => void;
}

const [TOP, RIGHT] = [26, 30];
const LANE = 18;
const BAR = 12;

/** Lanes that show what each trial, or the trials on each device, did over time. */
export function TimelineChart({ lanes, seconds, pauses, label, selected, onSelect }: TimelineChartProps) {
  const [root, width] = useWidth<HTMLDivElement>();
  const theme = useComputedColorScheme("light");
  const canvas = useRef<HTMLCanvasElement>(null);
  const [pointed, setPointed] = useState<{ lane: Lane; span: Span } | null>(null);
  const longest = lanes.reduce((most, lane) => Math.max(most, lane.label.length), 0);
  const left = Math.min(Math.max(70, longest * 6.6 + 14), Math.max(70, width * 0.42));
  const frame: Frame = useMemo(
    () => ({ left, right: Math.max(left + 40, width - RIGHT), top: TOP, lane: LANE, bar: BAR, seconds }),
    [left, width, seconds],
  );
  const height = TOP + lanes.length * LANE + 6;
  const marks = ticks("time", 0, Math.max(1e-3, seconds), { pixels: frame.right - frame.left, horizontal: true });
  useLayoutEffect(() => {
    if (!canvas.current || width === 0) return;
    const context = clear(canvas.current, width, height);
    lanes.forEach((lane, i) => {
      if (lane.trial !== null && lane.trial === selected) {
        context.fillStyle = theme === "dark" ? "rgba(169,180,240,0.16)" : "rgba(52,68,170,0.1)";
        context.fillRect(0, TOP + i * LANE, width, LANE);
      }
      for (const span of lane.spans) {
        const box = boxOf(frame, i, span);
        const { [theme]: colour, band } = PHASES[span.phase];
        const strength = selected === null || span.trial_number === selected || lane.trial === null ? 1 : 0.45;
        context.fillStyle = context.strokeStyle = colour;
        context.globalAlpha = strength * (band ? BAND : 1);
        context.fillRect(box.x, box.y, box.width, box.height);
        if (!band) continue;
        context.globalAlpha = strength;
        context.lineWidth = 1;
        context.strokeRect(box.x + 0.5, box.y + 0.5, Math.max(0, box.width - 1), box.height - 1);
      }
      context.globalAlpha = 1;
      for (const seconds of lane.failedAt ?? []) {
        const { x, y } = crossAt(frame, i, seconds);
        context.beginPath();
        context.moveTo(x - CROSS, y - CROSS);
        context.lineTo(x + CROSS, y + CROSS);
        context.moveTo(x + CROSS, y - CROSS);
        context.lineTo(x - CROSS, y + CROSS);
        // On bars of any color, the cross has an edge in the color of the panel.
        for (const [stroke, wide] of [
          [INK[theme].halo, 5],
          [FAILED[theme], 2.2],
        ] as const) {
          context.strokeStyle = stroke;
          context.lineWidth = wide;
          context.stroke();
        }
      }
    });
  }, [lanes, frame, width, height, theme, selected]);
  const at = (event: React.MouseEvent) => {
    const box = event.currentTarget.getBoundingClientRect();
    return spanAt(frame, lanes, event.clientX - box.left, event.clientY - box.top);
  };
  return (
    <>
      <div
        ref={root}
        className={classes.timeline}
        style={{ height }}
        onMouseMove={(event) => setPointed(at(event))}
        onMouseLeave={() => setPointed(null)}
        onClick={(event) => {
          const number = at(event)?.span.trial_number;
          if (number !== null && number !== undefined) onSelect(number);
        }}
      >
        <canvas ref={canvas} role="img" aria-label={label} />
        <svg width={width} height={height} aria-hidden>
          {marks.at.map((value, i) => (
            <g key={value}>
              <line x1={xOf(frame, value)} x2={xOf(frame, value)} y1={TOP - 5} y2={height} className={classes.grid} />
              <text className={classes.axisMark} x={xOf(frame, value)} y={TOP - 11} textAnchor="middle">
                {marks.labels[i]}
              </text>
            </g>
          ))}
          {pauses.map((pause) => (
            <line
              key={pause.at}
              x1={xOf(frame, pause.at)}
              x2={xOf(frame, pause.at)}
              y1={TOP - 5}
              y2={height}
              className={classes.pause}
            />
          ))}
          {lanes.map((lane, i) => (
            <text
              key={lane.label}
              className={lane.trial === null ? classes.axisMark : classes.laneName}
              data-selected={lane.trial !== null && lane.trial === selected}
              x={6}
              y={TOP + i * LANE + LANE / 2 + 4}
            >
              {lane.label}
              {lane.state === "failed" && (
                <tspan className={classes.failedMark} dx={4}>
                  ✕
                </tspan>
              )}
            </text>
          ))}
        </svg>
      </div>
      <p className={classes.caption} aria-live="polite">
        {pointed ? words(pointed.lane, pointed.span) : "Hover over a bar for details; click it to open its trial."}
      </p>
    </>
  );
}

function words(lane: Lane, { phase, start, end, trial_number, segment }: Span): string {
  const who = trial_number === null ? lane.label : `Trial ${trial_number}, segment ${segment}`;
  const where = lane.trial === null && trial_number !== null ? ` on ${lane.label.split(" · ")[0]}` : "";
  const ended =
    lane.state === "failed" ? "; the trial failed" : lane.failedAt?.length ? "; the cross marks a failure" : "";
  const all = lane.trial === null ? "" : `; trained ${duration(trainedFor(lane))} in all${ended}`;
  return `${who}${where}: ${PHASES[phase].words} for ${duration(end - start)}, from ${duration(start)} to ${duration(end)} of the search${all}`;
}
