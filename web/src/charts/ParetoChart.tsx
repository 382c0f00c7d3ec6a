import { useComputedColorScheme } from "@mantine/core";
import { useLayoutEffect, useMemo, useRef, useState, type PointerEvent } from "react";
import type { Experiment, Trial } from "../api/types";
import { colourAt } from "../curves/colours";
import { config, metric as written, plural, type Labels } from "../format";
import { ticks, widthFor } from "../curves/ticks";
import { clear } from "./canvas";
import classes from "./charts.module.css";
import { staircase, type Point } from "./pareto";
import { useWidth } from "./useWidth";

interface ParetoChartProps {
  points: readonly Point[];
  front: ReadonlySet<number>;
  objectives: Experiment["objectives"];
  /** The objectives on the horizontal and the vertical axis. */
  axes: readonly [number, number];
  trials: ReadonlyMap<number, Trial>;
  labels: Labels;
  only: ReadonlySet<number> | null;
  /** The colors of picked trials. */
  colours: ReadonlyMap<number, string>;
  selected: number | null;
  pointed: number | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
  height: number;
}

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 16, 12, 42];
/** The room for the title left of the labels. */
const TITLE = 6;
const REACH = 14;

/**
 * Choose where to write a trial's number beside its point at (x, y): on the side of better values, away from the stairs and from
 * other trials, if there is room for it.
 */
export function numberPlace(
  x: number,
  y: number,
  size: number,
  modes: readonly ["min" | "max", "min" | "max"],
  { right, bottom }: { right: number; bottom: number },
): [number, number] {
  const after = modes[0] === "max" ? x + 8 + size <= right : x - 8 - size < LEFT;
  const above = modes[1] === "max" ? y >= TOP + 16 : y + 14 > bottom;
  return [after ? x + 8 : x - 8 - size, above ? y - 6 : y + 14];
}

/** Return the numbers to write and where. Trials whose numbers would cover each other share one text, such as "7, 11". */
export function numbersOf(
  dots: readonly { number: number; x: number; y: number }[],
  size: (text: string) => number,
  modes: readonly ["min" | "max", "min" | "max"],
  room: { right: number; bottom: number },
): { text: string; at: [number, number] }[] {
  const found: { text: string; x: number; y: number; at: [number, number] }[] = [];
  for (const { number, x, y } of dots) {
    const at = numberPlace(x, y, size(String(number)), modes, room);
    const near = found.find((one) => Math.abs(one.at[0] - at[0]) < 16 && Math.abs(one.at[1] - at[1]) < 12);
    if (near) {
      near.text += `, ${number}`;
      near.at = numberPlace(near.x, near.y, size(near.text), modes, room);
    } else found.push({ text: String(number), x, y, at });
  }
  return found.map(({ text, at }) => ({ text, at }));
}

/** Plot two of the objectives against each other, with a point for each trial, and the Pareto front. */
export function ParetoChart(props: ParetoChartProps) {
  const {
    points,
    front,
    objectives,
    axes,
    trials,
    labels,
    only,
    colours,
    selected,
    pointed,
    onSelect,
    onPoint,
    height,
  } = props;
  const [root, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useComputedColorScheme("light");
  const [tip, setTip] = useState<{ number: number; left: number; top: number } | null>(null);
  const [across, up] = [objectives[axes[0]]!, objectives[axes[1]]!];

  const plane = useMemo(() => {
    const range = (values: number[]) => {
      let [min, max] = [Infinity, -Infinity];
      for (const value of values) [min, max] = [Math.min(min, value), Math.max(max, value)];
      const room = max > min ? 0.05 * (max - min) : Math.max(0.5, 0.05 * Math.abs(max));
      return { min: min - room, max: max + room };
    };
    return { x: range(points.map((one) => one.values[axes[0]]!)), y: range(points.map((one) => one.values[axes[1]]!)) };
  }, [points, axes]);
  const bottom = height - BOTTOM;
  const yTicks = ticks("linear", plane.y.min, plane.y.max, { pixels: bottom - TOP, horizontal: false });
  const left = widthFor(yTicks.labels) + TITLE;
  const right = Math.max(left + 10, width - RIGHT);
  const at = (x: number, y: number): [number, number] => [
    left + ((x - plane.x.min) / (plane.x.max - plane.x.min)) * (right - left),
    bottom - ((y - plane.y.min) / (plane.y.max - plane.y.min)) * (bottom - TOP),
  ];

  useLayoutEffect(() => {
    if (!canvas.current || width === 0) return;
    const context = clear(canvas.current, width, height);
    const strong = colourAt(1, theme);
    const faint = theme === "dark" ? "#8d99ad" : "#7a8699";
    const shown = points.filter((one) => only === null || only.has(one.number));
    const dot = (one: Point, radius: number, colour: string, hollow = false) => {
      const [x, y] = at(one.values[axes[0]]!, one.values[axes[1]]!);
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fillStyle = colour;
      context.globalAlpha = hollow ? 0.65 : 1;
      context.fill();
      context.globalAlpha = 1;
    };
    for (const one of shown) if (!front.has(one.number)) dot(one, 3.2, faint, true);
    const best = points.filter((one) => front.has(one.number));
    if (objectives.length === 2) {
      context.beginPath();
      staircase(
        best.map((one) => [one.values[axes[0]]!, one.values[axes[1]]!]),
        [across.mode, up.mode],
      ).forEach(([x, y], i) => {
        const [px, py] = at(x, y);
        if (i === 0) context.moveTo(px, py);
        else context.lineTo(px, py);
      });
      context.strokeStyle = strong;
      context.lineWidth = 1.5;
      context.setLineDash([4, 3]);
      context.stroke();
      context.setLineDash([]);
    }
    for (const one of shown) if (front.has(one.number)) dot(one, 5, strong);
    // The numbers of the front's trials link to their rows in the table.
    context.font = `11px ${getComputedStyle(canvas.current).fontFamily || "sans-serif"}`;
    context.fillStyle = theme === "dark" ? "#d5d9e0" : "#3b4252";
    context.strokeStyle = theme === "dark" ? "#1a1c21" : "#ffffff";
    context.lineWidth = 3;
    context.lineJoin = "round";
    const dots = shown
      .filter((one) => front.has(one.number))
      .map((one) => {
        const [x, y] = at(one.values[axes[0]]!, one.values[axes[1]]!);
        return { number: one.number, x, y };
      });
    const size = (text: string) => context.measureText(text).width;
    for (const { text, at: place } of numbersOf(dots, size, [across.mode, up.mode], { right, bottom })) {
      context.strokeText(text, ...place);
      context.fillText(text, ...place);
    }
    for (const one of points) {
      const colour = colours.get(one.number);
      if (colour) dot(one, 6, colour);
    }
    for (const number of [selected, pointed]) {
      const one = points.find((point) => point.number === number);
      if (!one) continue;
      const [x, y] = at(one.values[axes[0]]!, one.values[axes[1]]!);
      context.beginPath();
      context.arc(x, y, 9, 0, 2 * Math.PI);
      context.strokeStyle = theme === "dark" ? "#ffffff" : "#1a1c21";
      context.lineWidth = 2;
      context.stroke();
    }
  });

  const nearest = (
    event: PointerEvent<HTMLElement> | React.MouseEvent<HTMLElement>,
  ): { number: number; left: number; top: number } | null => {
    const box = canvas.current!.getBoundingClientRect();
    let best = REACH;
    let found: { number: number; left: number; top: number } | null = null;
    for (const one of points) {
      if (only !== null && !only.has(one.number)) continue;
      const [x, y] = at(one.values[axes[0]]!, one.values[axes[1]]!);
      const distance = Math.hypot(x - (event.clientX - box.left), y - (event.clientY - box.top));
      if (distance <= best) {
        best = distance;
        found = { number: one.number, left: x, top: y };
      }
    }
    return found;
  };
  const xTicks = ticks("linear", plane.x.min, plane.x.max, { pixels: right - left, horizontal: true });
  const wanted = (mode: "min" | "max") => (mode === "max" ? "higher is better" : "lower is better");
  const tipTrial = tip && trials.get(tip.number);

  return (
    <div ref={root} className={classes.plane} style={{ height }}>
      <svg width={width} height={height} aria-hidden>
        {xTicks.at.map((value, i) => {
          const [x] = at(value, plane.y.min);
          return (
            <g key={value}>
              <line x1={x} x2={x} y1={TOP} y2={bottom} className={classes.grid} />
              <text className={classes.axisMark} x={x} y={bottom + 14} textAnchor="middle">
                {xTicks.labels[i]}
              </text>
            </g>
          );
        })}
        {yTicks.at.map((value, i) => {
          const [, y] = at(plane.x.min, value);
          return (
            <g key={value}>
              <line x1={left} x2={right} y1={y} y2={y} className={classes.grid} />
              <text className={classes.axisMark} x={left - 6} y={y + 3.5} textAnchor="end">
                {yTicks.labels[i]}
              </text>
            </g>
          );
        })}
        <text className={classes.axisTitle} x={(left + right) / 2} y={height - 6} textAnchor="middle">
          {across.metric}, {wanted(across.mode)}
        </text>
        <text
          className={classes.axisTitle}
          transform={`translate(13,${(TOP + bottom) / 2}) rotate(-90)`}
          textAnchor="middle"
        >
          {up.metric}, {wanted(up.mode)}
        </text>
      </svg>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${up.metric} over ${across.metric} of ${plural(points.length, "trial")}, ${front.size} of them on the Pareto front; the table has the numbers`}
        onPointerMove={(event) => {
          const hit = nearest(event);
          setTip(hit);
          onPoint(hit?.number ?? null);
        }}
        onPointerLeave={() => {
          setTip(null);
          onPoint(null);
        }}
        onClick={(event) => {
          const hit = nearest(event);
          if (hit) onSelect(hit.number);
        }}
      />
      {tip && tipTrial && (
        <div
          className={classes.tip}
          style={{ left: tip.left, top: tip.top }}
          data-side={tip.left > width / 2 ? "left" : "right"}
        >
          <b>Trial {tip.number}</b>
          {front.has(tip.number) ? ", on the front" : ""}
          {objectives.map(({ metric }) => (
            <div key={metric}>
              last {metric} <b>{written(tipTrial.last[metric])}</b>
            </div>
          ))}
          <div className={classes.dimmed}>{config(tipTrial.params, labels)}</div>
        </div>
      )}
    </div>
  );
}
