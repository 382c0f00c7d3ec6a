/** Strokes on a canvas: lines, arrows, and the marks that say what happened to a trial. */

import type { TrialState } from "../api/types";
import type { Theme } from "./colours";
import { pixel, type Axis, type Line, type Range } from "./geometry";

/** The colors of everything that is not a curve. */
export const INK: Record<Theme, { axis: string; grid: string; halo: string; failed: string; rung: string }> = {
  light: {
    axis: "#5c6470",
    grid: "rgba(20, 30, 50, 0.07)",
    halo: "#ffffff",
    failed: "#c92a2a",
    rung: "rgba(60, 75, 110, 0.35)",
  },
  dark: {
    axis: "#9aa3b2",
    grid: "rgba(255, 255, 255, 0.07)",
    halo: "#16181d",
    failed: "#ff8787",
    rung: "rgba(190, 205, 240, 0.35)",
  },
};

export interface Axes {
  x: Axis;
  y: Axis;
}

/** Add a line to the path of the context. */
export function trace(context: CanvasRenderingContext2D, points: Float64Array): void {
  let down = false;
  for (let i = 0; i < points.length; i += 2) {
    const y = points[i + 1]!;
    if (Number.isNaN(y)) {
      down = false;
    } else if (down) {
      context.lineTo(points[i]!, y);
    } else {
      const x = points[i]!;
      context.moveTo(x, y);
      down = true;
      // A line of a single point would be invisible.
      if (!(i + 3 < points.length) || Number.isNaN(points[i + 3]!)) {
        context.moveTo(x - 1.2, y);
        context.lineTo(x + 1.2, y);
      }
    }
  }
}

/** A dotted line with a head at its end. */
export function arrow(
  context: CanvasRenderingContext2D,
  x0: number,
  y0: number,
  x1: number,
  y1: number,
  colour: string,
  width: number,
): void {
  if ([x0, y0, x1, y1].some(Number.isNaN)) return;
  const length = Math.hypot(x1 - x0, y1 - y0);
  context.save();
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = width;
  context.lineCap = "butt";
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  if (length > 12) {
    // The head stops short of the diamond that marks the point itself.
    const [dx, dy] = [(x1 - x0) / length, (y1 - y0) / length];
    const [tipX, tipY] = [x1 - 5 * dx, y1 - 5 * dy];
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(tipX, tipY);
    context.lineTo(tipX - 6 * dx - 3.2 * dy, tipY - 6 * dy + 3.2 * dx);
    context.lineTo(tipX - 6 * dx + 3.2 * dy, tipY - 6 * dy - 3.2 * dx);
    context.closePath();
    context.fill();
  }
  context.restore();
}

/**
 * A bar where the weights of a trial were discarded, and a diamond at the point from which it continued with another
 * trial's weights. If only its parameters have changed, there is only the diamond.
 */
export function markExploits(
  context: CanvasRenderingContext2D,
  { points, exploits }: Line,
  size: number,
  halo: string,
): void {
  const fill = context.fillStyle;
  for (const { at, own } of exploits) {
    const [x, y] = [points[2 * at]!, points[2 * at + 1]!];
    if (Number.isNaN(y)) continue;
    let before = at - 1;
    while (before >= 0 && Number.isNaN(points[2 * before + 1]!)) before--;
    if (before >= 0 && !own)
      context.fillRect(points[2 * before]! - size, points[2 * before + 1]! - 4 * size, 2 * size, 8 * size);
    for (const [r, colour] of [
      [5 * size, halo],
      [3.6 * size, fill],
    ] as const) {
      context.beginPath();
      context.moveTo(x - r, y);
      context.lineTo(x, y - r);
      context.lineTo(x + r, y);
      context.lineTo(x, y + r);
      context.fillStyle = colour;
      context.fill();
    }
  }
  context.fillStyle = fill;
}

export function disc(context: CanvasRenderingContext2D, x: number, y: number, radius: number): void {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

/** Mark how a trial ended: a dot if it was stopped, a ring if it is paused, a cross if it failed. */
export function markEnd(
  context: CanvasRenderingContext2D,
  { points }: Line,
  state: TrialState | undefined,
  size: number,
  theme: Theme,
): void {
  let last = points.length - 2;
  while (last >= 0 && Number.isNaN(points[last + 1]!)) last -= 2;
  if (last < 0) return;
  const [x, y] = [points[last]!, points[last + 1]!];
  const alone = last === 0 || Number.isNaN(points[last - 1]!);
  switch (state) {
    case "stopped":
    case "cancelled":
      return disc(context, x, y, 2.6 * size);
    case "failed": {
      const r = 3.5 * size;
      context.save();
      context.beginPath();
      context.moveTo(x - r, y - r);
      context.lineTo(x + r, y + r);
      context.moveTo(x - r, y + r);
      context.lineTo(x + r, y - r);
      context.lineWidth = 1.8;
      context.strokeStyle = INK[theme].failed;
      context.stroke();
      context.restore();
      return;
    }
    case "paused": {
      const fill = context.fillStyle;
      disc(context, x, y, 3 * size);
      context.fillStyle = INK[theme].halo;
      disc(context, x, y, 1.6 * size);
      context.fillStyle = fill;
      return;
    }
    default:
      if (alone) disc(context, x, y, 1.6 * size);
  }
}

/** Dashed vertical lines at the rungs of a scheduler, with labels where there is room. */
export function drawRungs(
  context: CanvasRenderingContext2D,
  levels: readonly number[],
  { x, y }: Axes,
  theme: Theme,
  font: string,
  falling: boolean,
): void {
  context.save();
  context.strokeStyle = INK[theme].rung;
  context.fillStyle = INK[theme].axis;
  context.font = font;
  context.lineWidth = 1;
  context.setLineDash([4, 4]);
  let free = -Infinity;
  for (const level of levels) {
    const at = Math.round(pixel(x, level)) + 0.5;
    if (!(at >= 0 && at <= x.to)) continue;
    context.beginPath();
    context.moveTo(at, 0);
    context.lineTo(at, y.from);
    context.stroke();
    const label = `rung ${level}`;
    const width = context.measureText(label).width;
    // At the right edge, the label is to the left of its line.
    const left = at + 4 + width > x.to ? at - 4 - width : at + 4;
    if (left < Math.max(free, 0)) continue;
    context.fillText(label, left, falling ? 11 : y.from - 5);
    free = left + 6 + width;
  }
  context.restore();
}

/** Say what the chart leaves out: how many points lie below and above the values that it shows. */
export interface LeftOut {
  below: number;
  above: number;
}

/** Return the sentences that say at the upper and the lower edge which points are not shown; null if there are none. */
export function leftOutWords({ below, above }: LeftOut, shown: Range, written: (value: number) => string) {
  const say = (count: number, where: string, limit: number) =>
    count === 0 ? null : `${count === 1 ? "1 point" : `${count} points`} ${where} ${written(limit)} not shown`;
  return { top: say(above, "above", shown.max), bottom: say(below, "below", shown.min) };
}

/** Shade the chart up to `until` pixels. In this part, most curves lie above or below the range that the chart shows. */
export function drawLate(context: CanvasRenderingContext2D, until: number, { x, y }: Axes, theme: Theme): void {
  context.save();
  context.fillStyle = INK[theme].axis;
  context.globalAlpha = 0.06;
  context.fillRect(Math.min(x.from, x.to), 0, until - Math.min(x.from, x.to), y.from);
  context.restore();
}

/** Write at the edges of the chart which points it leaves out. */
export function drawLeftOut(
  context: CanvasRenderingContext2D,
  { top, bottom }: ReturnType<typeof leftOutWords>,
  { x, y }: Axes,
  theme: Theme,
  font: string,
): void {
  context.save();
  context.font = font;
  context.textAlign = "right";
  for (const [text, at] of [
    [top && `▲ ${top}`, 12],
    [bottom && `▼ ${bottom}`, y.from - 18],
  ] as const) {
    if (!text) continue;
    const width = context.measureText(text).width;
    context.fillStyle = INK[theme].halo;
    context.globalAlpha = 0.85;
    context.fillRect(x.to - width - 12, at - 11, width + 8, 16);
    context.globalAlpha = 1;
    context.fillStyle = INK[theme].axis;
    context.fillText(text, x.to - 8, at);
  }
  context.restore();
}
