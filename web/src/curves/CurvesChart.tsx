import { useComputedColorScheme, VisuallyHidden } from "@mantine/core";
import { useEffect, useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type MouseEvent } from "react";
import type { Curves, Experiment, Series, Trial } from "../api/types";
import { apart, counted, metric, plural, reachedAt } from "../format";
import { hasEnded } from "../live/states";
import { labelOf, placeWords, type Across } from "./across";
import classes from "./curves.module.css";
import { isShortcut } from "../parts/common/useKeys";
import { useNewest } from "../parts/common/useNewest";
import { BY_FRONT } from "../charts/pareto";
import { rankWords } from "./colours";
import { RankScale } from "./RankScale";
import { leftOutByLog, logWords, pointAt, tookOver, type Late, type Source } from "./geometry";
import { ZOOM_KEYS } from "./axes";
import { CurvesPlot, type Hover, type Zoom } from "./plot";
import { smoothed } from "./smooth";
import { useResizeForPrint } from "../print";

export interface CurvesChartProps {
  curves: Curves;
  /** The same curves over the whole axis, if `curves` have only a part of it. */
  whole: Curves;
  /** The numbers of the trials that are drawn; null for all. */
  only: ReadonlySet<number> | null;
  /** The weight of the smoothing: 0 for none, and always below 1. */
  smoothing: number;
  /** The colors of picked trials. */
  colours: ReadonlyMap<number, string>;
  objective: Pick<Experiment, "metric" | "mode" | "scope" | "best" | "labels">;
  rank: ReadonlyMap<number, number>;
  /** The ranks are those of fronts, because there are several objectives. */
  byFront?: boolean;
  trials: ReadonlyMap<number, Trial>;
  source: (trial: number, ordinal: number) => Source | undefined;
  live: boolean;
  log: boolean;
  logX: boolean;
  rungs: readonly number[];
  /** Leave out outliers on the worse side. */
  trim: boolean;
  onTrim: (trim: boolean) => void;
  zoom: Zoom | null;
  onZoom: (zoom: Zoom | null) => void;
  selected: number | null;
  onSelect: (number: number) => void;
  /** The trial that is marked from outside the chart, for example by a row of the table. */
  marked: number | null;
  height: number;
}

/** One line per trial. Hovering marks the nearest, a click opens it; dragging zooms, a double click shows all again. */
export function CurvesChart(props: CurvesChartProps) {
  const {
    curves,
    whole: allCurves,
    only,
    smoothing,
    colours,
    objective,
    rank,
    byFront = false,
    trials,
    source,
    live,
    log,
    logX,
    rungs,
    trim,
    onTrim,
    zoom,
    onZoom,
    selected,
    onSelect,
    marked,
    height,
  } = props;
  const root = useRef<HTMLDivElement>(null);
  const plot = useRef<CurvesPlot | null>(null);
  const [newest, choose] = useNewest(selected, onSelect);
  const handlers = useRef({ choose, onZoom });
  useLayoutEffect(() => {
    handlers.current = { choose, onZoom };
  });
  const theme = useComputedColorScheme("light");
  const [hover, setHover] = useState<(Hover & { colour: string }) | null>(null);
  const [outside, setOutside] = useState(0);
  const [late, setLate] = useState<Late | null>(null);
  // The focus stays on the chart while the arrow keys open one trial after the other, so nothing else tells screen readers which.
  const [said, say] = useState("");

  const raw = useMemo(() => chosen(curves.series, only), [curves.series, only]);
  const series = useMemo(() => (smoothing > 0 ? raw.map((one) => smoothed(one, smoothing)) : raw), [raw, smoothing]);
  const whole = useMemo(
    () => chosen(allCurves.series, only).map((one) => smoothed(one, smoothing)),
    [allCurves.series, only, smoothing],
  );
  const xLabel = labelOf(curves);
  const look = {
    mode: objective.mode,
    objective: curves.metric === objective.metric,
    x: curves.x,
    xLabel,
    log,
    logX,
    trim,
    theme,
    rungs,
  };
  const first = useRef(look);

  useLayoutEffect(() => {
    const made = new CurvesPlot(root.current!, first.current, {
      onHover: (next) => setHover(next && { ...next, colour: made.colourOf(next.number) }),
      onSelect: (chosen) => handlers.current.choose(chosen),
      onOutside: (points, next) => {
        setOutside(points);
        setLate((before) => (before?.until === next?.until && before?.side === next?.side ? before : next));
      },
      onZoom: (part) => handlers.current.onZoom(part),
    });
    plot.current = made;
    const observer = new ResizeObserver(([entry]) =>
      made.resize(Math.floor(entry!.contentRect.width), Math.floor(entry!.contentRect.height)),
    );
    observer.observe(root.current!);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, []);

  useLayoutEffect(() => {
    first.current = look;
    plot.current?.setLook(look);
  });
  useResizeForPrint(() => plot.current?.resize(root.current!.clientWidth, root.current!.clientHeight));
  useEffect(() => plot.current?.setZoom(zoom), [zoom]);
  useEffect(
    () => plot.current?.setData({ series, whole, raw, rank, source, live }),
    [series, whole, raw, rank, source, live],
  );
  useEffect(() => plot.current?.select(selected), [selected, series]);
  useEffect(() => plot.current?.pick(colours), [colours, series]);
  useEffect(() => plot.current?.mark(marked), [marked]);

  const none = useMemo(() => logWords(series, log, logX), [series, log, logX]);
  const leftOut = useMemo(() => leftOutByLog(series, log, logX), [series, log, logX]);
  const exploits = series.some((one) => one.segments.some(tookOver));
  const changes = series.some((one) => one.segments.some((segment) => segment.own));
  const drawn = series.filter((one) => one.segments.length > 0);
  const reported = drawn.length;
  const states = new Set(drawn.map((one) => one.state));
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1, k: -1, j: 1 }[event.key];
    if (step === undefined || isShortcut(event)) return;
    event.preventDefault();
    const order = series
      .map((one) => ({ ...one, rank: rank.get(one.number) }))
      .filter((one) => one.rank !== undefined)
      .sort((a, b) => a.rank! - b.rank! || a.number - b.number);
    const now = newest();
    const at = order.findIndex((one) => one.number === now);
    const next = order[at < 0 ? 0 : Math.min(order.length - 1, Math.max(0, at + step))];
    if (!next) return;
    choose(next.number);
    const best = `${counted(objective)} ${metric(next.best_value)}`;
    say([`Trial ${next.number}`, next.state, rankWords(next.rank, byFront), best].filter(Boolean).join(", "));
  };

  // These buttons are gone after a click.
  const leave = (event: MouseEvent<HTMLButtonElement>) =>
    event.currentTarget === document.activeElement && root.current?.focus({ preventScroll: true });

  return (
    <div className={classes.chart}>
      <div
        ref={root}
        className={classes.plot}
        style={{ height }}
        role="img"
        tabIndex={0}
        onKeyDown={onKeyDown}
        aria-description={ZOOM_KEYS}
        aria-label={`Curves of ${curves.metric} for ${plural(reported, "trial")}. Arrow keys go through the trials by rank; the table below has the numbers.`}
      />
      <VisuallyHidden aria-live="polite">{said}</VisuallyHidden>
      {none && (
        <p className={classes.none} style={{ height }}>
          {none}
        </p>
      )}
      {late && !zoom && (
        <button
          type="button"
          className={classes.late}
          // At the end of the chart that these curves do not reach.
          style={{ top: late.side === "above" ? height - 116 : 34 }}
          onClick={(event) => {
            leave(event);
            onTrim(false);
          }}
        >
          {lateWords(late, curves)} <u>Show the beginning</u>
        </button>
      )}
      {hover && (
        <Tooltip
          hover={hover}
          curves={curves}
          objective={objective}
          trials={trials}
          rank={rankWords(rank.get(hover.number), byFront)}
          colour={hover.colour}
          source={source}
        />
      )}
      <div className={classes.legend}>
        <RankScale rank={rank} {...(byFront ? { by: "front", title: BY_FRONT } : {})} />
        {(states.has("stopped") || states.has("cancelled")) && (
          <span>
            <i className={classes.dot} aria-hidden />{" "}
            {states.has("cancelled") ? (states.has("stopped") ? "stopped or cancelled" : "cancelled") : "stopped"}
          </span>
        )}
        {states.has("paused") && (
          <span>
            <i className={classes.ring} aria-hidden /> paused
          </span>
        )}
        {states.has("failed") && (
          <span>
            <i className={classes.cross} aria-hidden>
              ×
            </i>{" "}
            failed
          </span>
        )}
        {exploits && (
          <span>
            <i className={classes.given} aria-hidden /> weights discarded
          </span>
        )}
        {exploits && (
          <span>
            <i className={classes.diamond} aria-hidden /> continued from another trial's weights
          </span>
        )}
        {changes && (
          <span>
            <i className={classes.diamond} aria-hidden /> first report with other parameters
          </span>
        )}
        {leftOut && <span>{leftOut}</span>}
        <span className={classes.hint}>
          {zoom ? (
            <button
              type="button"
              onClick={(event) => {
                leave(event);
                onZoom(null);
              }}
            >
              Show everything
            </button>
          ) : outside > 0 ? (
            <button type="button" onClick={() => onTrim(false)}>
              {outside === 1 ? "1 point lies" : `${outside} points lie`} outside the chart: show all
            </button>
          ) : !trim ? (
            <button type="button" onClick={() => onTrim(true)}>
              Hide outliers
            </button>
          ) : (
            "drag to zoom, click a curve to open its trial"
          )}
        </span>
      </div>
    </div>
  );
}

function chosen(series: readonly Series[], only: ReadonlySet<number> | null): readonly Series[] {
  return only ? series.filter((one) => only.has(one.number)) : series;
}

/** "Before iteration 14, most curves lie above this chart." */
export function lateWords({ until, side }: Late, across: Across): string {
  const where = placeWords(across, until).replace(/^(at|after) /, "");
  return `Before ${where}, most curves lie ${side} this part.`;
}

interface TooltipProps {
  hover: Hover;
  curves: Curves;
  objective: Pick<Experiment, "metric" | "mode" | "scope" | "best" | "labels">;
  trials: ReadonlyMap<number, Trial>;
  /** The rank in words; null if the trial has none. */
  rank: string | null;
  colour: string;
  source: (trial: number, ordinal: number) => Source | undefined;
}

function Tooltip({ hover, curves, objective, trials, rank, colour, source }: TooltipProps) {
  const series = curves.series.find((one) => one.number === hover.number);
  const point = series && pointAt(series, hover.at, curves.x);
  if (!series || !point) return null;
  const trial = trials.get(hover.number);
  const donor = point.exploited ? source(hover.number, point.ordinal)?.trial : undefined;
  return (
    <div className={classes.tooltip} style={{ left: hover.left, top: hover.top }} data-side={hover.side}>
      <div className={classes.tooltipHead}>
        <i style={{ background: colour }} aria-hidden />
        <b>Trial {hover.number}</b> {series.state}
        {rank && <span>{rank}</span>}
      </div>
      <div>
        {curves.metric} <b>{metric(point.y)}</b> {placeWords(curves, point.x)}
        {point.ordinal > 1 && `, segment ${point.ordinal}`}
        {point.exploited && (donor === undefined ? ", after an exploit" : `, with the weights of trial ${donor}`)}
        {point.changed && ", the first one with other parameters"}
      </div>
      <div>
        {counted(objective)} <b>{metric(series.best_value)}</b>
        {trial?.best_value === series.best_value && reachedAt(trial)}
      </div>
      {trial && <div className={classes.tooltipParams}>{apart(trial, objective)}</div>}
      {trial && hasEnded(trial.state) && trial.reason && <div>{trial.reason}</div>}
    </div>
  );
}
