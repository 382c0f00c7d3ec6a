import { useComputedColorScheme } from "@mantine/core";
import { useLayoutEffect, useRef, useState, type MouseEvent } from "react";
import type { Trial } from "../api/types";
import { palette, rankedOf, shade, shareOfRank } from "../curves/colours";
import { widthFor } from "../curves/ticks";
import { config, metric as written, reachedAt, type Labels } from "../format";
import { clear } from "./canvas";
import classes from "./charts.module.css";
import { axisName, LETTER, positionOf, shortened, type Dimension } from "./dimensions";
import { fittingLabels, marksOf, type Dot, type Heat } from "./scatter";
import { useWidth } from "./useWidth";

/** The properties that charts of trials share: which trials are shown, marked and picked. */
export interface Marking {
  rank: ReadonlyMap<number, number>;
  /** The colors of picked trials. */
  colours: ReadonlyMap<number, string>;
  only: ReadonlySet<number> | null;
  selected: number | null;
  pointed: number | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
}

interface ScatterChartProps extends Marking {
  dots: readonly Dot[];
  across: Dimension;
  up: Dimension;
  trials: ReadonlyMap<number, Trial>;
  /** The name of the objective, for the tooltip. */
  metric: string;
  labels: Labels;
  /** A line of steps, in values of both axes. */
  steps?: readonly (readonly [number, number])[];
  heat?: Heat;
  height: number;
  label: string;
}

const [RIGHT, TOP, BOTTOM] = [12, 10, 38];
/** Room at the left and at the bottom for trials without the parameter of an axis. */
const ABSENT_ROOM = 26;
const REACH = 12;

/** The opacity of a heat-map cell that has no finished trial nearby. */
const FAINT = 0.3;

/** A point for each trial, in the color of its rank; hollow if the trial has not trained to its end, a cross if it is infeasible. */
export function ScatterChart(props: ScatterChartProps) {
  const { dots, across, up, trials, metric, labels, steps, heat, height, label } = props;
  const { rank, colours, only, selected, pointed, onSelect, onPoint } = props;
  const [root, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useComputedColorScheme("light");
  const [tip, setTip] = useState<{ number: number; left: number; top: number } | null>(null);

  const bottom = height - BOTTOM - (dots.some((dot) => dot.y === null) ? ABSENT_ROOM : 0);
  const upMarks = marksOf(up, bottom - TOP).map((mark) => ({
    ...mark,
    shown: up.range ? mark.label : shortened(mark.label, 10),
  }));
  const labelsEnd = widthFor(upMarks.map(({ shown }) => shown));
  const left = labelsEnd + (dots.some((dot) => dot.x === null) ? ABSENT_ROOM : 0);
  const right = Math.max(left + 20, width - RIGHT);
  // A little room, so that points at the ends of an axis are not cut off.
  const inset = 6;
  const px = (x: number | null) =>
    x === null ? labelsEnd + ABSENT_ROOM / 2 : left + inset + x * (right - left - 2 * inset);
  const py = (y: number | null) =>
    y === null ? height - BOTTOM - ABSENT_ROOM / 2 : bottom - inset - y * (bottom - TOP - 2 * inset);

  useLayoutEffect(() => {
    if (!canvas.current || width === 0) return;
    const context = clear(canvas.current, width, height);
    const shades = palette(theme);
    if (heat) {
      context.globalAlpha = 0.55;
      context.drawImage(pictureOf(heat, shades), px(0), py(1), px(1) - px(0), py(0) - py(1));
      context.globalAlpha = 1;
    }
    if (steps && steps.length > 0) {
      context.beginPath();
      const end = px(1);
      steps.forEach(([x, y], i) => {
        const [sx, sy] = [px(positionOf(across, x)), py(positionOf(up, y))];
        if (i === 0) context.moveTo(sx, sy);
        else context.lineTo(sx, py(positionOf(up, steps[i - 1]![1])));
        context.lineTo(sx, sy);
      });
      context.lineTo(end, py(positionOf(up, steps[steps.length - 1]![1])));
      context.strokeStyle = shades[shade(1)]!;
      context.lineWidth = 2;
      context.stroke();
    }
    const drawn = [...dots].sort(
      (a, b) =>
        Number(a.finished) - Number(b.finished) || (rank.get(b.number) ?? Infinity) - (rank.get(a.number) ?? Infinity),
    );
    const ranked = rankedOf(rank);
    for (const dot of drawn) {
      const chosen = only === null || only.has(dot.number);
      const own = colours.get(dot.number);
      context.globalAlpha = chosen ? 0.9 : 0.12;
      const colour = own ?? shades[shade(shareOfRank(rank.get(dot.number), ranked))]!;
      if (!dot.feasible) {
        cross(context, px(dot.x), py(dot.y), own ? 4.5 : 3.2);
        context.strokeStyle = colour;
        context.lineWidth = 1.6;
        context.stroke();
        continue;
      }
      context.beginPath();
      context.arc(px(dot.x), py(dot.y), own ? 5 : heat && dot.finished ? 4.2 : 3.2, 0, 2 * Math.PI);
      const paper = theme === "dark" ? "#16181d" : "#ffffff";
      context.fillStyle = dot.finished ? colour : paper;
      context.fill();
      if (!dot.finished) {
        context.strokeStyle = colour;
        context.lineWidth = 1.4;
        context.stroke();
      } else if (heat) {
        context.strokeStyle = paper;
        context.lineWidth = 1;
        context.stroke();
      }
    }
    context.globalAlpha = 1;
    for (const number of new Set([selected, pointed])) {
      const dot = dots.find((one) => one.number === number);
      if (!dot) continue;
      context.beginPath();
      context.arc(px(dot.x), py(dot.y), 7.5, 0, 2 * Math.PI);
      context.strokeStyle = theme === "dark" ? "#ffffff" : "#1a1c21";
      context.lineWidth = 2;
      context.stroke();
    }
  });

  const marks = marksOf(across, right - left, true);
  const texts = marks.map(({ label: text }) => text);
  const names = across.range ? texts : fittingLabels(texts, (px(1) - px(0)) / Math.max(1, texts.length));

  const near = (event: MouseEvent<HTMLElement>) => {
    const box = canvas.current!.getBoundingClientRect();
    let best = REACH;
    let found: { number: number; left: number; top: number } | null = null;
    for (const dot of dots) {
      if (only !== null && !only.has(dot.number)) continue;
      const [x, y] = [px(dot.x), py(dot.y)];
      const distance = Math.hypot(x - (event.clientX - box.left), y - (event.clientY - box.top));
      if (distance <= best) [best, found] = [distance, { number: dot.number, left: x, top: y }];
    }
    return found;
  };
  const tipTrial = tip && trials.get(tip.number);
  return (
    <div ref={root} className={classes.plane} style={{ height }}>
      <svg width={width} height={height} aria-hidden>
        {marks.map(({ at, label: text }, i) => (
          <g key={text}>
            <line x1={px(at)} x2={px(at)} y1={TOP} y2={bottom} className={classes.grid} />
            <text className={classes.axisMark} x={px(at)} y={height - BOTTOM + 14} textAnchor="middle">
              {names[i] !== text && <title>{text}</title>}
              {names[i]}
            </text>
          </g>
        ))}
        {upMarks.map(({ at, label: text, shown }) => (
          <g key={text}>
            <line x1={left} x2={right} y1={py(at)} y2={py(at)} className={classes.grid} />
            <text className={classes.axisMark} x={labelsEnd - 6} y={py(at) + 3.5} textAnchor="end">
              {shown}
            </text>
          </g>
        ))}
        {left > labelsEnd && (
          <text className={classes.axisMark} x={left - 11} y={height - BOTTOM + 14} textAnchor="end">
            not present
          </text>
        )}
        {bottom < height - BOTTOM && (
          <text className={classes.axisMark} textAnchor="end">
            <tspan x={labelsEnd - 6} y={height - BOTTOM - ABSENT_ROOM / 2 - 2}>
              not
            </tspan>
            <tspan x={labelsEnd - 6} dy={12}>
              present
            </tspan>
          </text>
        )}
        <text className={classes.axisTitle} x={(left + right) / 2} y={height - 6} textAnchor="middle">
          <title>{across.label}</title>
          {fitting(across, 2 * Math.min((left + right) / 2, width - (left + right) / 2))}
        </text>
        {heat && (
          <text
            className={classes.axisTitle}
            transform={`translate(12,${(TOP + bottom) / 2}) rotate(-90)`}
            textAnchor="middle"
          >
            <title>{up.label}</title>
            {fitting(up, height)}
          </text>
        )}
      </svg>
      <canvas
        ref={canvas}
        role="img"
        aria-label={label}
        onMouseMove={(event) => {
          const hit = near(event);
          setTip(hit);
          onPoint(hit?.number ?? null);
        }}
        onMouseLeave={() => {
          setTip(null);
          onPoint(null);
        }}
        onClick={(event) => {
          const hit = near(event);
          if (hit) onSelect(hit.number);
        }}
      />
      {tip && tipTrial && (
        <div
          className={classes.tip}
          style={{ left: tip.left, top: tip.top }}
          data-side={tip.left > width / 2 ? "left" : "right"}
        >
          <b>Trial {tip.number}</b> {tipTrial.state}
          <div>
            {up.objective ? up.label : metric} <b>{written(tipTrial.best_value)}</b>
            {reachedAt(tipTrial)}
          </div>
          <div className={classes.dimmed}>{config(tipTrial.params, labels)}</div>
        </div>
      )}
    </div>
  );
}

/** A pixel for each cell; the browser smooths it when it is drawn larger. */
function pictureOf({ columns, rows, shares, sure }: Heat, shades: readonly string[]): HTMLCanvasElement {
  const picture = document.createElement("canvas");
  [picture.width, picture.height] = [columns, rows];
  const context = picture.getContext("2d")!;
  shares.forEach((share, i) => {
    if (share === null) return;
    context.fillStyle = shades[shade(share)]!;
    context.globalAlpha = FAINT + (1 - FAINT) * sure[i]!;
    context.fillRect(i % columns, rows - 1 - Math.floor(i / columns), 1, 1);
  });
  return picture;
}

function fitting(dimension: Dimension, room: number): string {
  return shortened(axisName(dimension), Math.max(6, Math.floor(room / LETTER)));
}

function cross(context: CanvasRenderingContext2D, x: number, y: number, size: number): void {
  context.beginPath();
  context.moveTo(x - size, y - size);
  context.lineTo(x + size, y + size);
  context.moveTo(x - size, y + size);
  context.lineTo(x + size, y - size);
}
