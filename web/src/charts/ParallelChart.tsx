import { useComputedColorScheme } from "@mantine/core";
import { useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import type { Trial } from "../api/types";
import { palette, rankedOf, shade, shareOfRank } from "../curves/colours";
import { plural } from "../format";
import type { Brushes, Chosen } from "../pages/address";
import { clear } from "./canvas";
import classes from "./charts.module.css";
import { isShortcut } from "../parts/common/useKeys";
import {
  ABSENT,
  axisName,
  choose,
  chosenWords,
  LETTER,
  positionOf,
  shortened,
  stepped,
  valueOf,
  type Dimension,
} from "./dimensions";
import { marksOf } from "./scatter";
import { useWidth } from "./useWidth";
import { own } from "../own";

interface ParallelChartProps {
  trials: readonly Trial[];
  dimensions: readonly Dimension[];
  rank: ReadonlyMap<number, number>;
  /** The colors of picked trials. */
  colours: ReadonlyMap<number, string>;
  brushes: Brushes;
  /** Null removes the brush of that axis. */
  onBrush: (id: string, chosen: Chosen | null) => void;
  /** The axis `id` moves to this place among the others. */
  onMove: (id: string, to: number) => void;
  only: ReadonlySet<number> | null;
  selected: number | null;
  pointed: number | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
  height: number;
}

const TOP = 34;
/** The height of a further line of names, for names wider than the room between two axes. */
const LINE = 15;
const GAP = 12;
/** The room for names left of the first axis and right of the last one. */
const FIRST = 44;
const LAST = 56;
const BOTTOM = 14;
/** Room below the axes for values that are not present. */
const BELOW = 26;
const GRIP = 14;
const NARROWEST = 96;
const REACH = 12;

const FILTER_KEYS =
  "The up arrow raises the lower end, and the down arrow lowers the upper end. With Shift, up raises the upper end, and down lowers the lower end. Escape removes the filter.";

interface Layout {
  x: number[];
  /** The number of lines over which the titles above the axes are spread. */
  names: string[];
  lines: number;
  top: number;
  bottom: number;
  absent: number;
}

/** One line per trial through its parameters to its result. Dragging along an axis selects trials; the selections of several axes combine. */
export function ParallelChart(props: ParallelChartProps) {
  const {
    trials,
    dimensions,
    rank,
    colours,
    brushes,
    onBrush,
    onMove,
    only,
    selected,
    pointed,
    onSelect,
    onPoint,
    height,
  } = props;
  const [root, room] = useWidth<HTMLDivElement>();
  const lower = useRef<HTMLCanvasElement>(null);
  const upper = useRef<HTMLCanvasElement>(null);
  const theme = useComputedColorScheme("light");
  const [drag, setDrag] = useState<{ id: string; from: number; to: number } | null>(null);

  const [moved, setMoved] = useState<{ index: number; from: number; by: number } | null>(null);

  const width = Math.max(room, dimensions.length * NARROWEST);
  const optional = dimensions.some((one) => one.optional);
  const layout = useMemo((): Layout => {
    const bottom = height - BOTTOM - (optional ? BELOW : 0);
    const step = dimensions.length > 1 ? (width - 110) / (dimensions.length - 1) : 0;
    const crowded = dimensions.some((one) => LETTER * axisName(one).length > step - 6);
    const lines = crowded ? 2 : 1;
    const names = shownNames(dimensions.map(axisName), lines, step);
    const top = TOP + (lines - 1) * LINE;
    return { x: dimensions.map((_, i) => 50 + i * step), names, lines, top, bottom, absent: height - BOTTOM };
  }, [dimensions, width, height, optional]);

  const lines = useMemo(() => {
    const place = (trial: Trial) => rank.get(trial.number) ?? rankedOf(rank) + 1;
    return [...trials]
      .sort((a, b) => place(b) - place(a))
      .map((trial) => ({
        number: trial.number,
        y: dimensions.map((dimension) => {
          const at = positionOf(dimension, valueOf(trial, dimension));
          return at === null ? layout.absent : layout.bottom - at * (layout.bottom - layout.top);
        }),
      }));
  }, [trials, dimensions, rank, layout]);

  // Draw in the same frame as the axes: a later effect could leave lines that do not fit the axes for a moment.
  useLayoutEffect(() => {
    if (!lower.current || room === 0) return;
    const context = clear(lower.current, width, height);
    const colours = palette(theme);
    context.lineWidth = lines.length > 300 ? 0.8 : 1.2;
    context.lineJoin = "round";
    const draw = (chosen: boolean) => {
      for (const { number, y } of lines) {
        if ((only === null || only.has(number)) !== chosen) continue;
        trace(context, layout.x, y);
        context.strokeStyle = chosen
          ? colours[shade(shareOfRank(rank.get(number), rankedOf(rank)))]!
          : theme === "dark"
            ? "rgba(160,170,190,0.10)"
            : "rgba(60,70,90,0.09)";
        context.stroke();
      }
    };
    if (only !== null) draw(false);
    draw(true);
  }, [lines, layout, only, rank, theme, room, width, height]);

  useLayoutEffect(() => {
    if (!upper.current || room === 0) return;
    const context = clear(upper.current, width, height);
    for (const number of new Set([...colours.keys(), selected, pointed])) {
      const line = number === null ? undefined : lines.find((one) => one.number === number);
      if (!line) continue;
      for (const [size, colour] of [
        [6, theme === "dark" ? "#16181d" : "#ffffff"],
        [2.6, colours.get(line.number) ?? palette(theme)[shade(shareOfRank(rank.get(line.number), rankedOf(rank)))]!],
      ] as const) {
        trace(context, layout.x, line.y);
        context.lineWidth = size;
        context.strokeStyle = colour;
        context.stroke();
      }
    }
  }, [lines, layout, colours, selected, pointed, rank, theme, room, width, height]);

  const share = (event: PointerEvent<SVGElement>) => {
    const top = event.currentTarget.closest("svg")!.getBoundingClientRect().top;
    return (layout.bottom - (event.clientY - top)) / (layout.bottom - layout.top);
  };
  const begin = (dimension: Dimension) => (event: PointerEvent<SVGElement>) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    const at = share(event);
    setDrag({ id: dimension.id, from: at, to: at });
  };
  const move = (event: PointerEvent<SVGElement>) => drag && setDrag({ ...drag, to: share(event) });
  const end = (dimension: Dimension) => () => {
    if (!drag) return;
    const moved = Math.abs(drag.to - drag.from) * (layout.bottom - layout.top);
    setDrag(null);
    // Values that are not present lie below the axis. A click on the axis itself removes its brush.
    if (drag.from < -0.02 && dimension.optional) onBrush(dimension.id, { of: [ABSENT] });
    else
      onBrush(
        dimension.id,
        moved < 4 ? null : choose(dimension, Math.max(0, Math.min(1, drag.from)), Math.max(0, Math.min(1, drag.to))),
      );
  };
  const near = (event: PointerEvent<HTMLDivElement>): number | null => {
    const box = lower.current!.getBoundingClientRect();
    return nearestLine(lines, layout.x, only, event.clientX - box.left, event.clientY - box.top);
  };
  // Axes are moved by their titles.
  const place = (x: number) => {
    const distances = layout.x.map((at) => Math.abs(at - x));
    return distances.indexOf(Math.min(...distances));
  };
  const grab = (i: number) => (event: PointerEvent<SVGElement>) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    setMoved({ index: i, from: event.clientX, by: 0 });
  };
  const pull = (event: PointerEvent<SVGElement>) => moved && setMoved({ ...moved, by: event.clientX - moved.from });
  const drop = (dimension: Dimension) => () => {
    if (!moved) return;
    const to = place(layout.x[moved.index]! + moved.by);
    if (to !== moved.index) onMove(dimension.id, to);
    setMoved(null);
  };
  const step = (dimension: Dimension, i: number) => (event: KeyboardEvent) => {
    const to = i + ({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0);
    if (to === i || to < 0 || to >= dimensions.length || isShortcut(event)) return;
    event.preventDefault();
    onMove(dimension.id, to);
  };
  const keys = (dimension: Dimension) => (event: KeyboardEvent) => {
    if (isShortcut(event)) return;
    if (event.key === "Escape" || event.key === "Delete" || event.key === "Backspace") onBrush(dimension.id, null);
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    onBrush(dimension.id, stepped(dimension, own(brushes, dimension.id), event.key === "ArrowUp", event.shiftKey));
  };

  return (
    <div className={`${classes.scroller} sideways`} ref={root}>
      <div
        className={classes.parallel}
        style={{ width, height }}
        onPointerLeave={() => onPoint(null)}
        onPointerMove={(event) => !drag && !moved && event.pointerType === "mouse" && onPoint(near(event))}
        onClick={(event) => {
          if ((event.target as Element).closest("[data-axis]")) return;
          const number = near(event as unknown as PointerEvent<HTMLDivElement>);
          if (number !== null) onSelect(number);
        }}
      >
        <canvas
          ref={lower}
          data-layer="lines"
          style={{ opacity: selected !== null || pointed !== null || colours.size > 0 ? 0.35 : 1 }}
        />
        <canvas ref={upper} />
        <svg
          width={width}
          height={height}
          role="group"
          aria-label={`Parallel coordinates of ${plural(trials.length, "trial")} over ${dimensions.map((one) => one.label).join(", ")}`}
        >
          {dimensions.map((dimension, i) => {
            const chosen = own(brushes, dimension.id);
            const live = drag?.id === dimension.id ? drag : null;
            return (
              <g
                key={dimension.id}
                transform={`translate(${layout.x[i]! + (moved?.index === i ? moved.by : 0)},0)`}
                data-axis={dimension.id}
              >
                <text
                  className={`${classes.axisTitle} ${classes.movable}`}
                  tabIndex={0}
                  role="button"
                  aria-label={moveWords(dimension, layout.names[i]!)}
                  onPointerDown={grab(i)}
                  onPointerMove={pull}
                  onPointerUp={drop(dimension)}
                  onPointerCancel={() => setMoved(null)}
                  onKeyDown={step(dimension, i)}
                  y={14 + (i % layout.lines) * LINE}
                  {...titlePlace(layout.names[i]!, i, dimensions.length)}
                >
                  <title>{dimension.label}</title>
                  {layout.names[i]}
                </text>
                <line y1={layout.top} y2={layout.bottom} className={classes.axisLine} />
                {marksOf(dimension, layout.bottom - layout.top).map(({ at, label }) => (
                  <text
                    key={label}
                    className={classes.axisMark}
                    x={6}
                    y={layout.bottom - at * (layout.bottom - layout.top) + 3.5}
                  >
                    {shortened(label, 12)}
                  </text>
                ))}
                {dimension.optional && (
                  <text className={classes.axisMark} x={6} y={layout.absent + 3.5}>
                    {dimension.objective ? "no value" : "not present"}
                  </text>
                )}
                {stretches(dimension, chosen, live, layout).map(({ y, size }, k) => (
                  <rect key={k} className={classes.brush} x={-GRIP / 2} width={GRIP} y={y} height={size} rx={2} />
                ))}
                <rect
                  className={classes.grip}
                  x={-GRIP}
                  width={2 * GRIP}
                  y={layout.top - 8}
                  height={layout.absent - layout.top + 16}
                  tabIndex={0}
                  role="slider"
                  aria-label={`Filter by ${dimension.label}`}
                  aria-description={FILTER_KEYS}
                  aria-valuetext={chosen ? chosenWords(dimension, chosen) : "all"}
                  aria-valuenow={0}
                  onPointerDown={begin(dimension)}
                  onPointerMove={move}
                  onPointerUp={end(dimension)}
                  onPointerCancel={() => setDrag(null)}
                  onKeyDown={keys(dimension)}
                />
              </g>
            );
          })}
        </svg>
      </div>
    </div>
  );
}

/** The outer titles are centered over their axes, too, unless they are too long for the margin. */
export function titlePlace(
  name: string,
  i: number,
  count: number,
): { textAnchor: "start" | "middle" | "end"; x: number } {
  if (i === 0 && name.length > 11) return { textAnchor: "start", x: -FIRST };
  if (i === count - 1 && name.length > 13) return { textAnchor: "end", x: LAST };
  return { textAnchor: "middle", x: 0 };
}

function trace(context: CanvasRenderingContext2D, x: readonly number[], y: readonly number[]): void {
  context.beginPath();
  y.forEach((value, i) => (i === 0 ? context.moveTo(x[i]!, value) : context.lineTo(x[i]!, value)));
}

/** The chosen line that passes nearest to (px, py), within the reach. */
export function nearestLine(
  lines: readonly { number: number; y: readonly number[] }[],
  x: readonly number[],
  only: ReadonlySet<number> | null,
  px: number,
  py: number,
): number | null {
  const i = x.findIndex((at, k) => px >= at && px <= (x[k + 1] ?? -Infinity));
  if (i < 0) return null;
  const t = (px - x[i]!) / (x[i + 1]! - x[i]! || 1);
  let found: number | null = null;
  let best = REACH;
  for (const { number, y } of lines) {
    if (only !== null && !only.has(number)) continue;
    const distance = Math.abs(y[i]! + t * (y[i + 1]! - y[i]!) - py);
    if (distance <= best) [best, found] = [distance, number];
  }
  return found;
}

/** The position of an axis's brush. */
function stretches(
  dimension: Dimension,
  chosen: Chosen | undefined,
  live: { from: number; to: number } | null,
  { top, bottom, absent }: Layout,
): { y: number; size: number }[] {
  const at = (position: number) => bottom - Math.max(0, Math.min(1, position)) * (bottom - top);
  if (live) return [{ y: Math.min(at(live.from), at(live.to)), size: Math.abs(at(live.from) - at(live.to)) }];
  if (!chosen) return [];
  if ("from" in chosen) {
    const [low, high] = [positionOf(dimension, chosen.from), positionOf(dimension, chosen.to)];
    return low === null || high === null ? [] : [{ y: at(high), size: Math.max(3, at(low) - at(high)) }];
  }
  const size = (bottom - top) / Math.max(1, dimension.categories.length);
  return chosen.of.flatMap((one) => {
    if (one === ABSENT) return [{ y: absent - 8, size: 16 }];
    const position = positionOf(dimension, one);
    return position === null ? [] : [{ y: at(position) - size / 2 + 1, size: size - 2 }];
  });
}

/** Shorten the names of axes that are `step` pixels apart, so that none touches the next one on its line. */
export function shownNames(names: readonly string[], lines: number, step: number): string[] {
  const span = lines * step;
  const last = names.length - 1;
  const fit = (name: string, room: number) => shortened(name, Math.max(6, Math.floor(room / LETTER)));
  const shown = names.map((name) => fit(name, span - GAP));
  // An outer name begins at the margin instead of over its axis, so it reaches farther towards its neighbor.
  for (const [outer, neighbor, margin] of [
    [0, lines, FIRST],
    [last, last - lines, LAST],
  ] as const) {
    if (names[neighbor] === undefined) continue;
    const both = neighbor === 0 || neighbor === last;
    const half = (LETTER * shown[neighbor]!.length) / 2;
    shown[outer] = fit(shown[outer]!, both ? span / 2 + FIRST : span + margin - half - GAP);
  }
  return shown;
}

/** Return the label of the button that moves an axis. It begins with the visible text, so that users of voice control can say it. */
function moveWords(dimension: Dimension, shown: string): string {
  const seen = shown !== dimension.label ? `${shown}: ` : "";
  return `${seen}Move the axis ${dimension.label} with the left and right arrow keys`;
}
