import { useComputedColorScheme } from "@mantine/core";
import { useEffect, useLayoutEffect, useRef, useState, type KeyboardEvent } from "react";
import type { Curves, Experiment, Trial } from "../api/types";
import { config, duration, number } from "../format";
import { hasEnded } from "../live/events";
import { palette } from "./colours";
import classes from "./curves.module.css";
import { pointAt } from "./geometry";
import { CurvesPlot, type Hover } from "./plot";

export interface CurvesChartProps {
  curves: Curves;
  objective: Pick<Experiment, "metric" | "mode">;
  trials: ReadonlyMap<number, Trial>;
  log: boolean;
  /** Leave out points that lie far off on the worse side. */
  trim: boolean;
  onTrim: (trim: boolean) => void;
  timeAttr: string;
  selected: number | null;
  onSelect: (number: number) => void;
  /** Marked from outside, as by a row of the table. */
  marked: number | null;
  height: number;
}

/** One line per trial. Hovering marks the nearest, a click opens it; dragging zooms, a double click shows all again. */
export function CurvesChart({ curves, objective, trials, log, trim, onTrim, timeAttr, selected, onSelect, marked, height }: CurvesChartProps) {
  const root = useRef<HTMLDivElement>(null);
  const plot = useRef<CurvesPlot | null>(null);
  const select = useRef(onSelect);
  select.current = onSelect;
  const theme = useComputedColorScheme("light");
  const [hover, setHover] = useState<Hover | null>(null);
  const [view, setView] = useState({ outside: 0, zoomed: false });

  const xLabel = curves.x === "time" ? "time since the start" : timeAttr.replaceAll("_", " ");
  const look = { mode: objective.mode, objective: curves.metric === objective.metric, x: curves.x, xLabel, log, trim, theme };
  const first = useRef(look);

  useLayoutEffect(() => {
    const made = new CurvesPlot(root.current!, first.current, {
      onHover: setHover,
      onSelect: (chosen) => select.current(chosen),
      onView: (outside, zoomed) => setView((old) => (old.outside === outside && old.zoomed === zoomed ? old : { outside, zoomed })),
    });
    plot.current = made;
    const observer = new ResizeObserver(([entry]) => made.resize(Math.floor(entry!.contentRect.width), Math.floor(entry!.contentRect.height)));
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
  useEffect(() => plot.current?.setSeries(curves.series), [curves.series, objective.mode]);
  useEffect(() => plot.current?.select(selected), [selected, curves.series]);
  useEffect(() => plot.current?.mark(marked), [marked]);

  const exploits = curves.series.some((series) => series.segments.some((segment) => segment.cause === "exploit"));
  const ranked = curves.series.filter((series) => series.best_value !== null).length;
  const reported = curves.series.filter((series) => series.segments.length > 0).length;
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const order = curves.series
      .map((series) => ({ number: series.number, rank: plot.current?.rankOf(series.number) }))
      .filter((one) => one.rank !== undefined)
      .sort((a, b) => a.rank! - b.rank! || a.number - b.number);
    const at = order.findIndex((one) => one.number === selected);
    const next = order[at < 0 ? 0 : Math.min(order.length - 1, Math.max(0, at + step))];
    if (next) onSelect(next.number);
  };

  return (
    <div className={classes.chart}>
      <div
        ref={root}
        className={classes.plot}
        style={{ height }}
        role="img"
        tabIndex={0}
        onKeyDown={onKeyDown}
        aria-label={`Curves of ${curves.metric} for ${reported} trials. Arrow keys go through the trials by rank; the table below has the numbers.`}
      />
      {hover && <Tooltip hover={hover} curves={curves} objective={objective} trials={trials} plot={plot.current!} timeAttr={timeAttr} />}
      <div className={classes.legend}>
        <span className={classes.scale}>
          rank {ranked}
          <i style={{ background: `linear-gradient(to right, ${palette(theme).filter((_, i) => i % 9 === 0).join(",")})` }} aria-hidden />
          1
        </span>
        <span><i className={classes.dot} aria-hidden /> stopped</span>
        <span><i className={classes.ring} aria-hidden /> paused</span>
        <span><i className={classes.cross} aria-hidden>×</i> failed</span>
        {exploits && <span><i className={classes.diamond} aria-hidden /> exploit</span>}
        <span className={classes.hint}>
          {view.zoomed ? (
            <button type="button" onClick={() => plot.current?.resetZoom()}>Show everything</button>
          ) : view.outside > 0 ? (
            <button type="button" onClick={() => onTrim(false)}>{view.outside === 1 ? "1 far-off point is" : `${view.outside} far-off points are`} not shown: show</button>
          ) : !trim ? (
            <button type="button" onClick={() => onTrim(true)}>Leave out far-off points</button>
          ) : (
            "drag to zoom, click a curve for its trial"
          )}
        </span>
      </div>
    </div>
  );
}

interface TooltipProps {
  hover: Hover;
  curves: Curves;
  objective: Pick<Experiment, "metric" | "mode">;
  trials: ReadonlyMap<number, Trial>;
  plot: CurvesPlot;
  timeAttr: string;
}

function Tooltip({ hover, curves, objective, trials, plot, timeAttr }: TooltipProps) {
  const series = curves.series.find((one) => one.number === hover.number);
  const point = series && pointAt(series, hover.at, curves.x);
  if (!series || !point) return null;
  const trial = trials.get(hover.number);
  const rank = plot.rankOf(hover.number);
  const x = curves.x === "time" ? `at ${duration(point.x)}` : `${timeAttr === "training_iteration" ? "iteration" : timeAttr} ${point.x}`;
  return (
    <div className={classes.tooltip} style={{ left: hover.left, top: hover.top }} data-side={hover.left > 320 ? "left" : "right"}>
      <div className={classes.tooltipHead}>
        <i style={{ background: plot.colourOf(hover.number) }} aria-hidden />
        <b>Trial {hover.number}</b> {series.state}
        {rank !== undefined && <span>rank {rank}</span>}
      </div>
      <div>
        {curves.metric} <b>{number(point.y)}</b> {x}
        {point.ordinal > 1 && `, segment ${point.ordinal}`}{point.exploited && ", after an exploit"}
      </div>
      <div>best {objective.metric} <b>{number(series.best_value)}</b></div>
      {trial && <div className={classes.tooltipParams}>{config(trial.params)}</div>}
      {trial && hasEnded(trial.state) && trial.reason && <div>{trial.reason}</div>}
    </div>
  );
}
