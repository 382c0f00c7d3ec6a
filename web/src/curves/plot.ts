/**
 * The live chart of many curves. uPlot draws axes and grid and keeps scales and zoom; the lines are our own, on two canvases
 * over it: all of them below, the highlighted one above. Moving the mouse redraws only the upper one and fades the lower one
 * by CSS, so it costs the same with ten curves as with thousands.
 *
 * While reports come in, only the curves that have changed are drawn, over what is there. All of them are drawn again when the
 * axes change, when a new best value shifts the ranks and so the colors of the others, and else every few seconds. A drawing
 * of many points is spread over frames.
 */

import uPlot from "uplot";
import type { Mode, Series, XAxis } from "../api/types";
import { clear } from "../charts/canvas";
import { scaleOf } from "./across";
import { asAsked, LOG, ownTicks } from "./axes";
import { palette, rankedOf, shade, shareOfRank, type Theme } from "./colours";
import {
  donorPoint,
  extent,
  holds,
  inView,
  layOutOne,
  nearest,
  partAfter,
  pixel,
  type Extent,
  type Late,
  type Line,
  type Range,
  type Source,
} from "./geometry";
import {
  arrow,
  disc,
  drawLeftOut,
  drawRungs,
  INK,
  drawLate,
  leftOutWords,
  markEnd,
  markExploits,
  trace,
  type Axes,
} from "./marks";
import { widthFor } from "./ticks";
import { number } from "../format";
import { isShortcut } from "../parts/common/useKeys";

export interface Look {
  /** The mode of the objective. Outliers on its worse side may be left out. */
  mode: Mode;
  objective: boolean;
  x: XAxis;
  xLabel: string;
  log: boolean;
  logX: boolean;
  trim: boolean;
  theme: Theme;
  /** The positions of the vertical lines that mark a scheduler's rungs. */
  rungs: readonly number[];
}

export interface Hover {
  number: number;
  at: number;
  /** Pixels from the top left corner of the chart, axes included. */
  left: number;
  top: number;
  /** The side of the point on which there is more room. */
  side: "left" | "right";
}

export interface Zoom {
  x: Range;
  y: Range;
}

export interface PlotHandlers {
  onHover: (hover: Hover | null) => void;
  onSelect: (number: number) => void;
  /** Called with the number of outliers that are left out. */
  onOutside: (points: number, late: Late | null) => void;
  onZoom: (zoom: Zoom | null) => void;
}

export interface PlotData {
  series: readonly Series[];
  /** The same curves over the whole axis, if the series have only a part of it. */
  whole?: readonly Series[];
  /** The series before smoothing. They are drawn faintly below the others if they differ and are not too many. */
  raw?: readonly Series[];
  /** The ranks of all trials by the objective, whichever metric and trials are drawn. */
  rank: ReadonlyMap<number, number>;
  /** The source of the weights of a segment that begins with an exploit. */
  source: (trial: number, ordinal: number) => Source | undefined;
  /** More points will follow. */
  live: boolean;
}

/** The change of the length of both axes, and the moves along them as shares of their lengths, by key. */
const BY_KEY: Readonly<Record<string, readonly [size: number, x: number, y: number]>> = {
  "+": [0.5, 0, 0],
  "=": [0.5, 0, 0],
  "-": [2, 0, 0],
  ArrowLeft: [1, -0.25, 0],
  ArrowRight: [1, 0.25, 0],
  ArrowDown: [1, 0, -0.25],
  ArrowUp: [1, 0, 0.25],
};

const REACH = 24;
const FADED = "0.22";
/** The maximum number of arrows from donors. If there are more, only those of the trial under the mouse are drawn. */
const MOST_ARROWS = 60;
/** With at most this many curves, those before smoothing are drawn, too. */
const MOST_RAW = 60;
/** Milliseconds after which all curves are drawn again while only some change. */
const SETTLE_MS = 3000;
/** If the ranks change, very many curves are drawn again after this many times the time that drawing them takes. */
const COLOURS_SHARE = 5;
/** Points drawn in one frame. */
const FRAME_POINTS = 20_000;
const NOTHING_LEFT_OUT = { below: 0, above: 0 };
/** Room to grow into, as a share of the axis, so that not every report moves the axes. */
const HEADROOM = 0.08;

export class CurvesPlot {
  private readonly root: HTMLElement;
  private readonly handlers: PlotHandlers;
  private look: Look;
  private plot: uPlot | null = null;
  private readonly lower = layer();
  private readonly upper = layer();
  /** A hidden canvas on which all curves are drawn again, frame by frame, before it replaces the visible one. */
  private readonly spare = layer();
  /** The curves that have changed while all of them are being drawn there. */
  private late = new Set<number>();
  private data: PlotData = { series: [], rank: new Map(), source: () => undefined, live: false };
  /** Sorted from the worst to the best, so that the best are drawn last. */
  private series: readonly Series[] = [];
  private bySeries = new Map<number, Series>();
  private laid = new Map<number, { series: Series; line: Line }>();
  private laidFor = "";
  private lines: Line[] = [];
  private view: Extent | null = null;
  private shown: Zoom | null = null;
  /** The part for which keys have asked, until the page shows it. */
  private keyed: Zoom | null = null;
  private zoomed: Zoom | null = null;
  private marked: number | null = null;
  private selected: number | null = null;
  /** Trials that were picked, with their colors. */
  private picked: ReadonlyMap<number, string> = new Map();
  private pressed: { x: number; y: number } | null = null;
  private frame = 0;
  private settling: ReturnType<typeof setTimeout> | undefined;
  /** When all curves will be drawn again. */
  private due = Infinity;
  /** The number of points when all curves were last drawn, and the milliseconds that this took. */
  private points = 0;
  private took = 0;
  /** The number of times that all curves were drawn, and that single curves were drawn: for tests. */
  readonly drawn = { all: 0, alone: 0 };

  constructor(root: HTMLElement, look: Look, handlers: PlotHandlers) {
    this.root = root;
    this.look = look;
    this.handlers = handlers;
    root.addEventListener("keydown", this.onKey);
    this.build();
  }

  destroy(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.settling);
    this.root.removeEventListener("keydown", this.onKey);
    this.plot?.destroy();
    this.plot = null;
  }

  setLook(look: Look): void {
    if (JSON.stringify(look) === JSON.stringify(this.look)) return;
    this.look = look;
    this.shown = this.keyed = null;
    this.plot?.destroy();
    this.build();
    if (this.zoomed) this.scale(this.zoomed);
    this.setData(this.data);
  }

  setData(data: PlotData): void {
    const changed = data.series.filter((one) => this.bySeries.get(one.number) !== one);
    const next = new Set(data.series.map((one) => one.number));
    const gone = [...this.bySeries.keys()].some((number) => !next.has(number));
    const colours = data.rank !== this.data.rank;
    const first = colours && this.data.rank.size === 0;
    const sources =
      data.source !== this.data.source || (data.raw === data.series) !== (this.data.raw === this.data.series);
    this.data = data;
    const last = rankedOf(data.rank) + 1;
    const place = (one: Series) => data.rank.get(one.number) ?? last;
    this.series = [...data.series].sort((a, b) => place(b) - place(a));
    this.bySeries = new Map(data.series.map((one) => [one.number, one]));
    this.view = this.extentOf(this.series);
    if (!this.plot) return;
    const { below, above } = this.view?.outside ?? NOTHING_LEFT_OUT;
    this.handlers.onOutside(below + above, this.view?.late ?? null);
    if (!this.zoomed && this.fit()) return;
    if (!this.shown && !this.zoomed) return this.draw();
    // The ranks of the table change now, so the colors of the curves do, too, unless there are very many points.
    const few = this.points <= FRAME_POINTS;
    // A curve that is drawn over its former self would leave it visible if its old points have moved, as with another smoothing.
    const most = 2 * changed.length > data.series.length;
    // If a drawing is under way, this one does not wait for its last frame: the next one may come before that.
    if (gone || sources || first || most || (colours && (few || !data.live))) this.draw(data.live && this.frame === 0);
    else this.drawOnly(changed, colours);
  }

  private extentOf(series: readonly Series[]): Extent | null {
    const { log, logX, trim, mode, objective } = this.look;
    return extent(series, { log, logX, trim: !trim ? null : objective ? mode : "both" });
  }

  resize(width: number, height: number): void {
    if (width > 0 && (this.plot?.width !== width || this.plot.height !== height)) this.plot?.setSize({ width, height });
  }

  /** Show this part, or everything. */
  setZoom(zoom: Zoom | null): void {
    if (JSON.stringify(zoom) === JSON.stringify(this.zoomed)) return;
    this.zoomed = zoom;
    this.keyed = null;
    if (zoom) this.scale(zoom);
    else {
      this.shown = null;
      this.fit();
    }
  }

  /** The trial whose page is open. It stays marked. */
  select(number: number | null): void {
    this.selected = number;
    this.drawUpper();
  }

  /** Mark a trial from outside, for example while the mouse is over its row in the table. */
  mark(number: number | null): void {
    if (this.marked === number) return;
    this.marked = number;
    this.drawUpper();
  }

  /** Trials with a color of their own: they stay marked. */
  pick(picked: ReadonlyMap<number, string>): void {
    this.picked = picked;
    this.drawUpper();
  }

  colourOf(number: number): string {
    return this.picked.get(number) ?? palette(this.look.theme)[this.shadeOf(number)]!;
  }

  private shadeOf(number: number): number {
    return shade(shareOfRank(this.data.rank.get(number), rankedOf(this.data.rank)));
  }

  private build(): void {
    const ink = INK[this.look.theme];
    const font = this.font(11);
    const axis = {
      stroke: ink.axis,
      font,
      labelFont: font,
      grid: { stroke: ink.grid, width: 1 },
      ticks: { show: false },
    };
    const { x, log, logX } = this.look;
    this.plot = new uPlot(
      {
        width: Math.max(200, this.root.clientWidth),
        height: Math.max(160, this.root.clientHeight),
        padding: [10, 30, 0, 0],
        legend: { show: false },
        scales: { x: { time: false, range: asAsked, ...(logX && LOG) }, y: { range: asAsked, ...(log && LOG) } },
        series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
        axes: [
          {
            ...axis,
            size: 24,
            gap: 5,
            label: this.look.xLabel,
            labelSize: 16,
            labelGap: 0,
            ...ownTicks(logX ? "log" : scaleOf(x), true),
          },
          { ...axis, size: (_, labels) => widthFor(labels), gap: 6, ...ownTicks(log ? "log" : "linear", false) },
        ],
        cursor: { points: { show: false }, x: false, y: false, drag: { x: true, y: true, uni: 20, setScale: false } },
        select: { show: true, left: 0, top: 0, width: 0, height: 0 },
        hooks: {
          init: [(u) => this.attach(u)],
          draw: [() => this.draw()],
          setSelect: [(u) => this.zoom(u)],
        },
      },
      [
        [1, 2],
        [1, 1],
      ],
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
    u.over.addEventListener("dblclick", () => this.handlers.onZoom(null));
  }

  /** Zoom and move by keys while the chart has the focus. Arrows without Shift are left to the page. */
  private readonly onKey = (event: KeyboardEvent): void => {
    const { look } = this;
    const shown = this.keyed ?? this.shown;
    const change = BY_KEY[event.key];
    if (isShortcut(event) || (event.key.startsWith("Arrow") && !event.shiftKey) || (!change && event.key !== "0"))
      return;
    event.preventDefault();
    event.stopPropagation();
    const { whole } = this.data;
    const all = whole ? this.extentOf(whole) : this.view;
    if (!change) return this.ask(null, all);
    if (!all || !shown) return;
    const [size, across, up] = change;
    const x = partAfter(shown.x, all.x, look.logX, size, across);
    const y = partAfter(shown.y, all.y, look.log, size, up);
    this.ask(x === all.x && y === all.y ? null : { x, y }, all);
  };

  /** Ask for a part, or for everything, and let the next key go on from there: it may come before the page has drawn this one. */
  private ask(zoom: Zoom | null, all: Extent | null): void {
    this.keyed = zoom ?? (this.zoomed && all && { x: all.x, y: all.y });
    this.handlers.onZoom(zoom);
  }

  /** Make the dragged area the view. A drag along one axis leaves the other as it is. */
  private zoom(u: uPlot): void {
    const { left, top, width, height } = u.select;
    if (width <= 0 && height <= 0) return;
    const [across, down] = [u.over.clientWidth, u.over.clientHeight];
    const part = (from: number, size: number, whole: number): [number, number] =>
      size <= 0 || size >= whole ? [0, whole] : [from, from + size];
    const [[x0, x1], [y0, y1]] = [part(left, width, across), part(top, height, down)];
    const value = (pixel: number, scale: "x" | "y") => u.posToVal(pixel, scale);
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.handlers.onZoom({
      x: { min: value(x0, "x"), max: value(x1, "x") },
      y: { min: value(y1, "y"), max: value(y0, "y") },
    });
  }

  /** Fit the axes to the curves if they do not fit yet. Return whether that has drawn everything. */
  private fit(): boolean {
    const { view, shown, data, look } = this;
    if (!view) return false;
    if (
      data.live &&
      shown &&
      holds(shown.x, view.x, view.points.x, look.logX) &&
      holds(shown.y, view.y, view.points.y, look.log)
    )
      return false;
    const x = data.live ? { ...view.x, max: view.x.max + HEADROOM * (view.x.max - view.x.min) } : view.x;
    if (
      shown &&
      shown.x.min === x.min &&
      shown.x.max === x.max &&
      shown.y.min === view.y.min &&
      shown.y.max === view.y.max
    )
      return false;
    this.scale({ x, y: view.y });
    return true;
  }

  private scale(shown: Zoom): void {
    this.shown = shown;
    const { plot } = this;
    if (!plot) return;
    plot.batch(() => {
      plot.setData(
        [
          [shown.x.min, shown.x.max],
          [shown.y.max, shown.y.min],
        ],
        false,
      );
      plot.setScale("x", shown.x);
      plot.setScale("y", shown.y);
    });
  }

  private axes(): Axes | null {
    const plot = this.plot;
    const [x, y] = [plot?.scales["x"], plot?.scales["y"]];
    if (!plot || !this.shown || x?.min == null || x.max == null || y?.min == null || y.max == null) return null;
    return {
      x: { range: { min: x.min, max: x.max }, log: this.look.logX, from: 0, to: plot.over.clientWidth },
      y: { range: { min: y.min, max: y.max }, log: this.look.log, from: plot.over.clientHeight, to: 0 },
    };
  }

  /** The pixels of a curve, computed again only if it or the axes have changed. */
  private lineOf(series: Series, axes: Axes): Line {
    const known = this.laid.get(series.number);
    if (known?.series === series) return known.line;
    const line = layOutOne(series, axes.x, axes.y, this.look.x);
    this.laid.set(series.number, { series, line });
    return line;
  }

  private layOutAll(axes: Axes): void {
    const key = JSON.stringify([axes, this.look.x]);
    if (key !== this.laidFor) this.laid.clear();
    this.laidFor = key;
    this.lines = this.series.map((series) => this.lineOf(series, axes));
  }

  /** Draw every curve again: at once if they are few, else frame by frame. */
  private draw(quietly = false): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    clearTimeout(this.settling);
    this.settling = undefined;
    this.due = Infinity;
    const axes = this.axes();
    if (!axes) return this.wipe();
    const began = performance.now();
    this.drawn.all += 1;
    this.layOutAll(axes);
    const points = this.lines.reduce((n, line) => n + line.points.length / 2, 0);
    this.points = points;
    const target = quietly && points > FRAME_POINTS ? this.spare : this.lower;
    const context = clear(target, axes.x.to, axes.y.from);
    const steps = this.paint(context, axes);
    this.late.clear();
    if (points <= FRAME_POINTS) {
      for (const _ of steps);
      return this.drawUpper();
    }
    const step = () => {
      if (!steps.next().done) {
        this.frame = requestAnimationFrame(step);
        return;
      }
      if (target === this.spare) {
        const front = clear(this.lower, axes.x.to, axes.y.from);
        front.setTransform(1, 0, 0, 1, 0, 0);
        front.drawImage(this.spare, 0, 0);
        const ratio = window.devicePixelRatio || 1;
        front.setTransform(ratio, 0, 0, ratio, 0, 0);
        this.strokeLines(
          front,
          this.lines.filter((line) => this.late.has(line.number)),
        );
      }
      this.frame = 0;
      this.took = performance.now() - began;
      this.drawUpper();
    };
    step();
    this.drawUpper();
  }

  /** Leave nothing of earlier curves, for the eye or for the mouse: the axes show none of the points. */
  private wipe(): void {
    this.lines = [];
    for (const canvas of [this.lower, this.upper]) clear(canvas, canvas.clientWidth, canvas.clientHeight);
    this.lower.style.opacity = "1";
  }

  /** Draw these curves over the others. `colours`: the colors of others may have changed, so all curves are drawn soon. */
  private drawOnly(changed: readonly Series[], colours: boolean): void {
    const axes = this.axes();
    if (!axes) return;
    this.layOutAll(axes);
    if (changed.length > 0) {
      this.drawn.alone += changed.length;
      const context = this.lower.getContext("2d")!;
      const numbers = new Set(changed.map((one) => one.number));
      if (this.frame) for (const number of numbers) this.late.add(number);
      this.strokeLines(
        context,
        this.lines.filter((line) => numbers.has(line.number)),
      );
      this.drawUpper();
    }
    if (colours) this.drawWithin(Math.min(SETTLE_MS, COLOURS_SHARE * this.took));
    else if (changed.length > 0) this.drawWithin(SETTLE_MS);
  }

  /** Draw all curves again at most this many milliseconds from now. */
  private drawWithin(ms: number): void {
    const due = performance.now() + ms;
    if (due >= this.due) return;
    clearTimeout(this.settling);
    this.due = due;
    this.settling = setTimeout(() => this.draw(true), ms);
  }

  /** Paint everything, a frame's worth of points at a time. */
  private *paint(context: CanvasRenderingContext2D, axes: Axes): Generator<void> {
    drawRungs(
      context,
      this.look.rungs,
      axes,
      this.look.theme,
      this.font(10),
      this.look.objective && this.look.mode === "min",
    );
    this.drawRaw(context, axes);
    let piece: Line[] = [];
    let points = 0;
    for (const line of this.lines) {
      piece.push(line);
      points += line.points.length / 2;
      if (points < FRAME_POINTS) continue;
      this.strokeLines(context, piece);
      [piece, points] = [[], 0];
      yield;
    }
    this.strokeLines(context, piece);
    this.drawArrows(context);
    for (const line of this.lines)
      if (this.bySeries.get(line.number)?.state === "failed") this.drawEnd(context, line, 1);
    if (this.view && !this.zoomed) {
      if (this.view.late) drawLate(context, pixel(axes.x, this.view.late.until), axes, this.look.theme);
      const words = leftOutWords(this.view.outside, this.view.y, number);
      drawLeftOut(context, words, axes, this.look.theme, this.font(11));
    }
  }

  /** Lines come from the worst to the best, so those of one shade follow each other and are one stroke. */
  private strokeLines(context: CanvasRenderingContext2D, lines: readonly Line[]): void {
    const colours = palette(this.look.theme);
    context.lineJoin = "round";
    context.lineWidth = this.lines.length > 200 ? 1 : 1.5;
    let i = 0;
    while (i < lines.length) {
      const colour = this.shadeOf(lines[i]!.number);
      context.beginPath();
      for (; i < lines.length && this.shadeOf(lines[i]!.number) === colour; i++) trace(context, lines[i]!.points);
      context.strokeStyle = colours[colour]!;
      context.stroke();
    }
    for (const line of lines) {
      context.fillStyle = colours[this.shadeOf(line.number)]!;
      markExploits(context, line, 1, INK[this.look.theme].halo);
      this.drawEnd(context, line, 1);
    }
  }

  private drawRaw(context: CanvasRenderingContext2D, axes: Axes): void {
    const { raw, series } = this.data;
    if (!raw || raw === series || raw.length > MOST_RAW) return;
    context.save();
    context.globalAlpha = 0.25;
    context.lineWidth = 1;
    for (const one of raw) {
      context.beginPath();
      trace(context, layOutOne(one, axes.x, axes.y, this.look.x).points);
      context.strokeStyle = this.colourOf(one.number);
      context.stroke();
    }
    context.restore();
  }

  /** Arrows from the points of donors to the points where their weights continued. */
  private drawArrows(context: CanvasRenderingContext2D): void {
    const all = this.lines.flatMap((line) => line.exploits.map((one) => ({ line, one })));
    if (all.length === 0 || all.length > MOST_ARROWS) return;
    context.save();
    context.globalAlpha = 0.65;
    for (const { line, one } of all) this.drawArrow(context, line, one.at, one.ordinal, 1);
    context.restore();
  }

  private drawArrow(context: CanvasRenderingContext2D, line: Line, at: number, ordinal: number, width: number): void {
    const source = this.data.source(line.number, ordinal);
    const donor = source && this.laid.get(source.trial);
    const recipient = this.bySeries.get(line.number);
    if (!source || !donor || !recipient || source.trial === line.number) return;
    const first = recipient.segments.find((segment) => segment.ordinal === ordinal)?.x[0];
    const from = first === undefined ? null : donorPoint(donor.series, source, first, this.look.x);
    if (from === null) return;
    const { points } = donor.line;
    arrow(
      context,
      points[2 * from]!,
      points[2 * from + 1]!,
      line.points[2 * at]!,
      line.points[2 * at + 1]!,
      this.colourOf(source.trial),
      width,
    );
  }

  private drawUpper(): void {
    const axes = this.axes();
    if (!axes) return;
    const context = clear(this.upper, axes.x.to, axes.y.from);
    const marked = [...this.picked.keys(), this.selected, this.marked].filter(
      (number, i, all) => number !== null && all.indexOf(number) === i,
    );
    // A trial outside the zoomed part must not fade the visible ones.
    const lines = marked
      .map((number) => this.lines.find((line) => line.number === number))
      .filter((line) => line !== undefined && inView(line, axes.x.to, axes.y.from)) as Line[];
    this.lower.style.opacity = lines.length ? FADED : "1";
    context.lineJoin = context.lineCap = "round";
    // All halos lie below all of these lines, so that none of them hides another one.
    context.beginPath();
    for (const line of lines) trace(context, line.points);
    context.lineWidth = 6;
    context.strokeStyle = INK[this.look.theme].halo;
    context.stroke();
    for (const line of lines) {
      context.beginPath();
      trace(context, line.points);
      context.lineWidth = 2.5;
      context.strokeStyle = context.fillStyle = this.colourOf(line.number);
      context.stroke();
      const { points } = line;
      if (points.length <= 400) {
        for (let i = 0; i < points.length; i += 2) {
          if (!Number.isNaN(points[i + 1]!)) disc(context, points[i]!, points[i + 1]!, 2.2);
        }
      }
      for (const { at, ordinal } of line.exploits) this.drawArrow(context, line, at, ordinal, 1.6);
      this.drawGiven(context, line.number);
      context.fillStyle = this.colourOf(line.number);
      markExploits(context, line, 1.5, INK[this.look.theme].halo);
      this.drawEnd(context, line, 1.6);
    }
  }

  /** Arrows to the trials that took over this trial's weights. */
  private drawGiven(context: CanvasRenderingContext2D, number: number): void {
    for (const line of this.lines) {
      if (line.number === number) continue;
      for (const { at, ordinal } of line.exploits) {
        if (this.data.source(line.number, ordinal)?.trial === number) this.drawArrow(context, line, at, ordinal, 1.2);
      }
    }
  }

  private drawEnd(context: CanvasRenderingContext2D, line: Line, size: number): void {
    markEnd(context, line, this.bySeries.get(line.number)?.state, size, this.look.theme);
  }

  private font(size: number): string {
    return `${size}px ${getComputedStyle(this.root).fontFamily || "sans-serif"}`;
  }

  private point(event: MouseEvent): void {
    const { over } = this.plot!;
    const box = over.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const hit = event.buttons ? null : nearest(this.lines, left, top, REACH);
    this.mark(hit?.number ?? null);
    const place = { left: left + over.offsetLeft, top: top + over.offsetTop };
    const side = left > box.width / 2 ? "left" : "right";
    this.handlers.onHover(hit && { number: hit.number, at: hit.at, ...place, side });
  }

  private leave(): void {
    this.mark(null);
    this.handlers.onHover(null);
  }
}

function layer(): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.style.cssText = "position:absolute;inset:0;pointer-events:none;transition:opacity 120ms";
  return canvas;
}
