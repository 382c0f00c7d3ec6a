/**
 * The live chart of many curves. uPlot draws axes and grid and keeps scales and zoom; the lines are our own, on two canvases
 * over it: all of them below, the highlighted one above. Moving the mouse redraws only the upper one and fades the lower one
 * by CSS, so it costs the same with ten curves as with thousands.
 */

import uPlot from "uplot";
import type { Mode, Series, XAxis } from "../api/types";
import { number } from "../format";
import { palette, ranks, shade, shareOfRank, type Theme } from "./colours";
import { TIME_STEPS, timeTick } from "./ticks";
import { extent, layOut, nearest, type Axis, type Extent, type Line } from "./geometry";

export interface Look {
  /** The objective's: trials are ranked and coloured by it, whichever metric is drawn. */
  mode: Mode;
  objective: boolean;
  x: XAxis;
  xLabel: string;
  log: boolean;
  trim: boolean;
  theme: Theme;
}

export interface Hover {
  number: number;
  at: number;
  /** Pixels from the plot's top left corner. */
  left: number;
  top: number;
}

export interface PlotHandlers {
  onHover: (hover: Hover | null) => void;
  onSelect: (number: number) => void;
  onView: (outside: number, zoomed: boolean) => void;
}

const REACH = 24;
const COUNT_STEPS = [1, 2, 5].flatMap((digit) => Array.from({ length: 12 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);
const FADED = "0.22";

const INK: Record<Theme, { axis: string; grid: string; halo: string; failed: string }> = {
  light: { axis: "#5c6470", grid: "rgba(20, 30, 50, 0.07)", halo: "#ffffff", failed: "#c92a2a" },
  dark: { axis: "#9aa3b2", grid: "rgba(255, 255, 255, 0.07)", halo: "#16181d", failed: "#ff8787" },
};

export class CurvesPlot {
  private readonly root: HTMLElement;
  private readonly handlers: PlotHandlers;
  private look: Look;
  private plot: uPlot | null = null;
  private readonly lower = layer();
  private readonly upper = layer();
  private series: readonly Series[] = [];
  private bySeries = new Map<number, Series>();
  private rank = new Map<number, number>();
  private lines: Line[] = [];
  private view: Extent | null = null;
  private zoomed = false;
  private marked: number | null = null;
  private selected: number | null = null;
  private pressed: { x: number; y: number } | null = null;

  constructor(root: HTMLElement, look: Look, handlers: PlotHandlers) {
    this.root = root;
    this.look = look;
    this.handlers = handlers;
    this.build();
  }

  destroy(): void {
    this.plot?.destroy();
    this.plot = null;
  }

  setLook(look: Look): void {
    if (JSON.stringify(look) === JSON.stringify(this.look)) return;
    this.look = look;
    this.zoomed = false;
    this.plot?.destroy();
    this.build();
    this.setSeries(this.series);
  }

  /** The best are drawn last. */
  setSeries(series: readonly Series[]): void {
    this.rank = ranks(series, this.look.mode);
    const last = series.length + 1;
    this.series = [...series].sort((a, b) => (this.rank.get(b.number) ?? last) - (this.rank.get(a.number) ?? last));
    this.bySeries = new Map(series.map((one) => [one.number, one]));
    this.view = extent(this.series, { log: this.look.log, trim: !this.look.trim ? null : this.look.objective ? this.look.mode : "both" });
    if (!this.plot || !this.view) return;
    this.handlers.onView(this.view.outside, this.zoomed);
    if (this.zoomed) this.draw();
    else this.showAll();
  }

  resize(width: number, height: number): void {
    if (width > 0 && (this.plot?.width !== width || this.plot.height !== height)) this.plot?.setSize({ width, height });
  }

  resetZoom(): void {
    this.zoomed = false;
    this.setSeries(this.series);
  }

  /** The trial whose page is open: stays marked. */
  select(number: number | null): void {
    this.selected = number;
    this.drawUpper();
  }

  /** Mark a trial from outside, as when its row in the table is pointed at. */
  mark(number: number | null): void {
    if (this.marked === number) return;
    this.marked = number;
    this.drawUpper();
  }

  rankOf(number: number): number | undefined {
    return this.rank.get(number);
  }

  colourOf(number: number): string {
    return palette(this.look.theme)[this.shadeOf(number)]!;
  }

  private shadeOf(number: number): number {
    return shade(shareOfRank(this.rank.get(number), this.rank.size));
  }

  private build(): void {
    const ink = INK[this.look.theme];
    const font = `11px ${getComputedStyle(this.root).fontFamily || "sans-serif"}`;
    const axis = { stroke: ink.axis, font, labelFont: font, grid: { stroke: ink.grid, width: 1 }, ticks: { show: false } };
    const { x, log } = this.look;
    this.plot = new uPlot(
      {
        width: Math.max(200, this.root.clientWidth),
        height: Math.max(160, this.root.clientHeight),
        padding: [10, 14, 0, 0],
        legend: { show: false },
        scales: { x: { time: false }, y: log ? { distr: 3, log: 10 } : {} },
        series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
        axes: [
          {
            ...axis, size: 24, gap: 5, label: this.look.xLabel, labelSize: 16, labelGap: 0, incrs: x === "time" ? TIME_STEPS : COUNT_STEPS,
            values: (_, splits) => splits.map((v) => (x === "time" ? timeTick(v) : String(v))),
          },
          { ...axis, size: 56, gap: 6, values: (_, splits) => splits.map((v) => (v === null || (log && !isRound(v)) ? "" : number(v))) },
        ],
        cursor: { points: { show: false }, x: false, y: false, drag: { x: true, y: true, uni: 20, setScale: true } },
        select: { show: true, left: 0, top: 0, width: 0, height: 0 },
        hooks: {
          init: [(u) => this.attach(u)],
          draw: [() => this.draw()],
          setSelect: [(u) => this.zoom(u)],
        },
      },
      [[0, 1], [1, 1]],
      this.root,
    );
  }

  private attach(u: uPlot): void {
    u.over.prepend(this.lower, this.upper);
    u.over.style.cursor = "crosshair";
    u.over.addEventListener("mousemove", (event) => this.point(event));
    u.over.addEventListener("mouseleave", () => this.leave());
    u.over.addEventListener("mousedown", (event) => (this.pressed = { x: event.clientX, y: event.clientY }));
    u.over.addEventListener("click", (event) => {
      const moved = this.pressed ? Math.hypot(event.clientX - this.pressed.x, event.clientY - this.pressed.y) : 0;
      if (moved > 4) return;
      this.point(event);
      if (this.marked !== null) this.handlers.onSelect(this.marked);
    });
    u.over.addEventListener("dblclick", () => this.resetZoom());
  }

  private zoom(u: uPlot): void {
    if (u.select.width <= 0 && u.select.height <= 0) return;
    this.zoomed = true;
    this.handlers.onView(this.view?.outside ?? 0, true);
  }

  private showAll(): void {
    const { plot, view } = this;
    if (!plot || !view) return;
    plot.batch(() => {
      plot.setData([[view.x.min, view.x.max], [view.y.max, view.y.max]], false);
      plot.setScale("x", view.x);
      plot.setScale("y", view.y);
    });
  }

  private axes(): { x: Axis; y: Axis } | null {
    const plot = this.plot;
    const [x, y] = [plot?.scales["x"], plot?.scales["y"]];
    if (!plot || x?.min == null || x.max == null || y?.min == null || y.max == null) return null;
    return {
      x: { range: { min: x.min, max: x.max }, log: false, from: 0, to: plot.over.clientWidth },
      y: { range: { min: y.min, max: y.max }, log: this.look.log, from: plot.over.clientHeight, to: 0 },
    };
  }

  private draw(): void {
    const axes = this.axes();
    if (!axes || !this.plot) return;
    this.lines = layOut(this.series, axes.x, axes.y, this.look.x);
    const context = clear(this.lower, axes.x.to, axes.y.from);
    const colours = palette(this.look.theme);
    const ink = INK[this.look.theme];
    context.lineJoin = "round";
    context.lineWidth = this.lines.length > 200 ? 1 : 1.5;
    // Lines come from the worst to the best, so those of one shade follow each other and are one stroke.
    let i = 0;
    while (i < this.lines.length) {
      const colour = this.shadeOf(this.lines[i]!.number);
      context.beginPath();
      for (; i < this.lines.length && this.shadeOf(this.lines[i]!.number) === colour; i++) trace(context, this.lines[i]!.points);
      context.strokeStyle = colours[colour]!;
      context.stroke();
    }
    for (const line of this.lines) {
      if (line.jumps.length) traceJumps(context, line, colours[this.shadeOf(line.number)]!, 1);
    }
    const failed: Line[] = [];
    for (const line of this.lines) {
      context.fillStyle = colours[this.shadeOf(line.number)]!;
      markExploits(context, line, 1, ink.halo);
      if (this.bySeries.get(line.number)?.state === "failed") failed.push(line);
      else this.drawEnd(context, line, 1);
    }
    for (const line of failed) this.drawEnd(context, line, 1);
    this.drawUpper();
  }

  private drawUpper(): void {
    const axes = this.axes();
    if (!axes) return;
    const context = clear(this.upper, axes.x.to, axes.y.from);
    const marked = [this.selected, this.marked].filter((number, i, all) => number !== null && all.indexOf(number) === i);
    const lines = marked.map((number) => this.lines.find((line) => line.number === number)).filter((line) => line !== undefined);
    this.lower.style.opacity = lines.length ? FADED : "1";
    context.lineJoin = context.lineCap = "round";
    for (const line of lines) {
      for (const [width, colour] of [[6, INK[this.look.theme].halo], [2.5, this.colourOf(line.number)]] as const) {
        context.beginPath();
        trace(context, line.points);
        context.lineWidth = width;
        context.strokeStyle = context.fillStyle = colour;
        context.stroke();
      }
      traceJumps(context, line, this.colourOf(line.number), 1.5);
      const { points } = line;
      for (let i = 0; i < points.length; i += 2) {
        if (!Number.isNaN(points[i + 1]!)) disc(context, points[i]!, points[i + 1]!, 2.2);
      }
      markExploits(context, line, 1.5, INK[this.look.theme].halo);
      this.drawEnd(context, line, 1.6);
    }
  }

  /** How a trial ended: a dot where it was stopped, a ring where it is paused, a cross where it failed. */
  private drawEnd(context: CanvasRenderingContext2D, line: Line, size: number): void {
    const { points } = line;
    let last = points.length - 2;
    while (last >= 0 && Number.isNaN(points[last + 1]!)) last -= 2;
    if (last < 0) return;
    const [x, y] = [points[last]!, points[last + 1]!];
    const alone = last === 0 || Number.isNaN(points[last - 1]!);
    switch (this.bySeries.get(line.number)?.state) {
      case "stopped":
      case "cancelled":
        return disc(context, x, y, 2.6 * size);
      case "failed": {
        const r = 3.5 * size;
        const [width, stroke] = [context.lineWidth, context.strokeStyle];
        context.beginPath();
        context.moveTo(x - r, y - r);
        context.lineTo(x + r, y + r);
        context.moveTo(x - r, y + r);
        context.lineTo(x + r, y - r);
        context.lineWidth = 1.8;
        context.strokeStyle = INK[this.look.theme].failed;
        context.stroke();
        [context.lineWidth, context.strokeStyle] = [width, stroke];
        return;
      }
      case "paused": {
        const fill = context.fillStyle;
        disc(context, x, y, 3 * size);
        context.fillStyle = INK[this.look.theme].halo;
        disc(context, x, y, 1.6 * size);
        context.fillStyle = fill;
        return;
      }
      default:
        if (alone) disc(context, x, y, 1.6 * size);
    }
  }

  private point(event: MouseEvent): void {
    const box = this.plot!.over.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const hit = event.buttons ? null : nearest(this.lines, left, top, REACH);
    this.mark(hit?.number ?? null);
    this.handlers.onHover(hit && { number: hit.number, at: hit.at, left, top });
  }

  private leave(): void {
    this.mark(null);
    this.handlers.onHover(null);
  }
}

/** One digit and a power of ten. */
function isRound(value: number): boolean {
  const digit = value / 10 ** Math.floor(Math.log10(value) + 1e-9);
  return Math.abs(digit - Math.round(digit)) < 1e-6;
}

function layer(): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.style.cssText = "position:absolute;inset:0;pointer-events:none;transition:opacity 120ms";
  return canvas;
}

function clear(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, w, h);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function trace(context: CanvasRenderingContext2D, points: Float64Array): void {
  let down = false;
  for (let i = 0; i < points.length; i += 2) {
    const y = points[i + 1]!;
    if (Number.isNaN(y)) down = false;
    else if (down) context.lineTo(points[i]!, y);
    else {
      context.moveTo(points[i]!, y);
      down = true;
    }
  }
}

/** Dots from where a trial was to where it goes on, further back, with another one's weights. */
function traceJumps(context: CanvasRenderingContext2D, { points, jumps }: Line, colour: string, width: number): void {
  context.save();
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineCap = "butt";
  context.setLineDash([1.5, 3]);
  context.beginPath();
  for (const [from, to] of jumps) {
    if (Number.isNaN(points[2 * from + 1]!) || Number.isNaN(points[2 * to + 1]!)) continue;
    context.moveTo(points[2 * from]!, points[2 * from + 1]!);
    context.lineTo(points[2 * to]!, points[2 * to + 1]!);
  }
  context.stroke();
  context.restore();
}

/** A diamond where a trial went on with another one's weights. */
function markExploits(context: CanvasRenderingContext2D, { points, exploits }: Line, size: number, halo: string): void {
  const fill = context.fillStyle;
  for (const at of exploits) {
    const [x, y] = [points[2 * at]!, points[2 * at + 1]!];
    if (Number.isNaN(y)) continue;
    for (const [r, colour] of [[5 * size, halo], [3.6 * size, fill]] as const) {
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

function disc(context: CanvasRenderingContext2D, x: number, y: number, radius: number): void {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}
