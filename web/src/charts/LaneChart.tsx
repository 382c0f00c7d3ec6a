import { useComputedColorScheme } from "@mantine/core";
import { useMemo, useState } from "react";
import { colourAt } from "../curves/colours";
import { ticks } from "../curves/ticks";
import { config, metric as written, param, paramName, plural, type Labels } from "../format";
import type { SourceOf } from "../live/useExperiment";
import classes from "./charts.module.css";
import { ancestry, partsOf, placesOf, type Lanes, type Piece, type Shades } from "./lanes";
import { useWidth } from "./useWidth";

interface LaneChartProps {
  lanes: Lanes;
  source: SourceOf;
  metric: string;
  labels: Labels;
  /** The meaning of the colors. */
  shades: Shades;
  /** The parameter that the colors show; null for the last values of the metric. */
  by: string | null;
  selected: number | null;
  onSelect: (number: number) => void;
}

const [LEFT, RIGHT, TOP] = [64, 18, 30];
const LANE = 24;
const BAR = 12;
const THIN = 3;
/** The pixels between neighboring arrows of the same iteration, if there is room before the next iteration with arrows. */
const BESIDE = 9;

/** A lane for each member of a population, its segments colored by score or by a parameter, with arrows from donors to recipients. */
export function LaneChart({ lanes, source, metric, labels, shades, by, selected, onSelect }: LaneChartProps) {
  const [root, width] = useWidth<HTMLDivElement>();
  const theme = useComputedColorScheme("light");
  const [pointed, setPointed] = useState<Piece | null>(null);
  const height = TOP + lanes.order.length * LANE + 8;
  const right = Math.max(LEFT + 40, width - RIGHT);
  const x = (iteration: number) => LEFT + (iteration / Math.max(1, lanes.end)) * (right - LEFT);
  const row = useMemo(
    () => new Map(lanes.order.map((number, i) => [number, TOP + i * LANE + LANE / 2])),
    [lanes.order],
  );
  const chain = useMemo(
    () => (selected === null ? null : ancestry(lanes, source, selected)),
    [lanes, source, selected],
  );
  const places = useMemo(() => placesOf(lanes.handovers, row), [lanes.handovers, row]);
  // Map each iteration with arrows to the number of iterations until the next one. The arrows bend into this room.
  const free = useMemo(() => {
    const at = [...new Set(lanes.handovers.map((one) => one.at))].sort((a, b) => a - b);
    return new Map(at.map((one, i) => [one, (at[i + 1] ?? lanes.end) - one]));
  }, [lanes]);
  const outermost = useMemo(() => {
    const found = new Map<number, number>();
    for (const { at, recipient, ordinal } of lanes.handovers)
      found.set(at, Math.max(found.get(at) ?? 0, places.get(`${recipient}.${ordinal}`) ?? 0));
    return found;
  }, [lanes.handovers, places]);
  const marks = ticks("count", 0, Math.max(1, lanes.end), { pixels: right - LEFT, horizontal: true });
  const inChain = (trial: number, ordinal: number) => chain === null || chain.has(`${trial}.${ordinal}`);
  return (
    <div ref={root} className={classes.lanes}>
      <svg
        width={width}
        height={height}
        role="group"
        aria-label={`Lineage of ${plural(lanes.order.length, "trial")}: ${plural(lanes.handovers.length, "exploit")}`}
      >
        <defs>
          <marker
            id="handover"
            viewBox="0 0 8 8"
            refX="7"
            refY="4"
            markerWidth="7"
            markerHeight="7"
            orient="auto-start-reverse"
          >
            <path d="M0 0.5 8 4 0 7.5z" className={classes.head} />
          </marker>
        </defs>
        {marks.at.map((value, i) => (
          <g key={value}>
            <line x1={x(value)} x2={x(value)} y1={TOP - 6} y2={height - 4} className={classes.grid} />
            <text className={classes.axisMark} x={x(value)} y={TOP - 12} textAnchor="middle">
              {marks.labels[i]}
            </text>
          </g>
        ))}
        {lanes.order.map((number) => (
          <text
            key={number}
            className={classes.laneName}
            x={8}
            y={row.get(number)! + 4}
            data-selected={number === selected}
            role="button"
            tabIndex={0}
            onClick={() => onSelect(number)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" && event.key !== " ") return;
              event.preventDefault(); // the space bar would scroll
              onSelect(number);
            }}
          >
            trial {number}
          </text>
        ))}
        {lanes.pieces.map((piece) => {
          const y = row.get(piece.trial);
          if (y === undefined) return null;
          const share = shades.share(piece);
          return partsOf(piece, chain).map(({ from, to, given, strong }) => (
            <rect
              key={`${piece.trial}.${piece.ordinal}.${from}`}
              x={x(from) + 0.5}
              width={Math.max(2, x(to) - x(from) - 1)}
              // Drawn below the bars, so that a later bar of the same trial covers discarded iterations.
              y={given ? y + BAR / 2 + 1 : y - BAR / 2}
              height={given ? THIN : BAR}
              rx={given ? 1 : 2}
              fill={share === null ? "var(--mantine-color-gray-5)" : colourAt(share, theme)}
              className={classes.piece}
              opacity={strong ? 1 : 0.25}
              onClick={() => onSelect(piece.trial)}
              onMouseEnter={() => setPointed(piece)}
              onMouseLeave={() => setPointed(null)}
            >
              <title>{wordsOf(piece, metric, labels)}</title>
            </rect>
          ));
        })}
        {lanes.handovers.map(({ donor, donorAt, recipient, at, ordinal }) => {
          const [from, to] = [row.get(donor), row.get(recipient)];
          if (from === undefined || to === undefined) return null;
          const down = to > from ? 1 : -1;
          const [x0, y0, x1, y1] = [x(donorAt), from + (down * BAR) / 2, x(at), to - down * (BAR / 2 + 1)];
          const room = 0.8 * (x(free.get(at) ?? 0) - x(0));
          const beside = Math.min(BESIDE, room / (1 + (outermost.get(at) ?? 0)));
          const place = places.get(`${recipient}.${ordinal}`) ?? 0;
          // A cubic curve reaches three quarters of the way to its control points.
          const bend = (4 / 3) * beside * (1 + place);
          const strong = chain !== null && inChain(recipient, ordinal);
          const shape = `M${x0} ${y0}C${x0 + bend} ${y0 + (y1 - y0) * 0.2} ${x1 + bend} ${y1 - (y1 - y0) * 0.2} ${x1 + 2} ${y1}`;
          return (
            <g
              key={`${recipient}.${ordinal}`}
              className={classes.arrow}
              opacity={chain !== null && !strong ? 0.12 : 1}
              data-place={place}
            >
              <title>{`Iteration ${at}: trial ${recipient} took over the weights of trial ${donor}`}</title>
              <path className={classes.reach} d={shape} />
              <path className={classes.handover} data-strong={strong} d={shape} markerEnd="url(#handover)" />
            </g>
          );
        })}
      </svg>
      <Legend
        shades={shades}
        name={legendOf(by === null ? null : paramName(by, labels), metric, shades)}
        say={by === null ? written : param}
        theme={theme}
      />
      <p className={classes.caption} aria-live="polite">
        {pointed
          ? wordsOf(pointed, metric, labels)
          : selected !== null && chain !== null
            ? `Highlighted: the origin of the weights of trial ${selected}.`
            : "Each lane is a trial, the best first, with its training iterations from left to right. An arrow leads from a donor to the trial that continued from its checkpoint; arrows of the same iteration lie side by side, and pointing at one names both trials. A gap means that the trial jumped ahead to the donor's iteration; a thin line means that it went back and lost these iterations."}
      </p>
    </div>
  );
}

function wordsOf({ trial, from, to, kept, score, params }: Piece, metric: string, labels: Labels): string {
  const where = to > from + 1 ? `iterations ${from + 1} to ${to}` : `iteration ${to}`;
  const given = kept < to ? `, of which it lost those after ${kept}` : "";
  return `Trial ${trial}, ${where}${given}: ${metric} ${written(score)} at the end${params ? `; ${config(params, labels)}` : ""}`;
}

/** Say what the colors of the bars mean, and those of the dots in the table below, which are on the same scale. */
function legendOf(by: string | null, metric: string, { log }: Shades): string {
  const scale = log ? " (log scale)" : "";
  return by === null
    ? `last ${metric} (bars), best ${metric} (dots in the table)${scale}`
    : `${by} (bars, and dots in the table)${scale}`;
}

interface LegendProps {
  shades: Shades;
  name: string;
  say: (value: number) => string;
  theme: "light" | "dark";
}

function Legend({ shades: { ends, values }, name, say, theme }: LegendProps) {
  const scale = [0, 0.25, 0.5, 0.75, 1].map((share) => colourAt(share, theme)).join(", ");
  return (
    <p className={classes.shades}>
      <span>{name}:</span>
      {ends && (
        <span>
          {say(ends[0])} <i style={{ background: `linear-gradient(to right, ${scale})` }} /> {say(ends[1])}
        </span>
      )}
      {values.map(([value, share]) => (
        <span key={value}>
          <i data-single style={{ background: colourAt(share, theme) }} /> {value}
        </span>
      ))}
    </p>
  );
}
