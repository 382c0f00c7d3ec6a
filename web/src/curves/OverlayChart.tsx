import { useComputedColorScheme } from "@mantine/core";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Series } from "../api/types";
import { metric as written } from "../format";
import { labelOf, placeWords, type Across } from "./across";
import { identityColour } from "./colours";
import classes from "./curves.module.css";
import { leftOutByLog, logWords, pointAt } from "./geometry";
import { ZOOM_KEYS } from "./axes";
import { CurvesPlot, type Hover } from "./plot";
import { useResizeForPrint } from "../print";

interface OverlayChartProps {
  /** The curves. Their numbers count from 0 in the order of their colors. */
  series: readonly Series[];
  names: readonly string[];
  metric: string;
  across: Across;
  /** The label of the horizontal axis, if not that of `across`. */
  xLabel?: string;
  log: boolean;
  height: number;
}

const NO_RANKS: ReadonlyMap<number, number> = new Map();
const NO_RUNGS: readonly number[] = [];

/** A few curves over each other, each in a color of its own. */
export function OverlayChart({ series, names, metric, across, log, height, ...rest }: OverlayChartProps) {
  const root = useRef<HTMLDivElement>(null);
  const plot = useRef<CurvesPlot | null>(null);
  const theme = useComputedColorScheme("light");
  const [hover, setHover] = useState<Hover | null>(null);
  const { x } = across;
  const xLabel = rest.xLabel ?? labelOf(across);
  const look = {
    mode: "max" as const,
    objective: false,
    x,
    xLabel,
    log,
    logX: false,
    trim: false,
    theme,
    rungs: NO_RUNGS,
  };
  const first = useRef(look);
  const colours = useMemo(() => new Map(names.map((_, i) => [i, identityColour(i, theme)])), [names, theme]);

  useLayoutEffect(() => {
    const made = new CurvesPlot(root.current!, first.current, {
      onHover: setHover,
      onSelect: () => {},
      onOutside: () => {},
      onZoom: (zoom) => made.setZoom(zoom),
    });
    plot.current = made;
    const observer = new ResizeObserver(([entry]) => made.resize(Math.floor(entry!.contentRect.width), height));
    observer.observe(root.current!);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [height]);
  useLayoutEffect(() => {
    first.current = look;
    plot.current?.setLook(look);
  });
  useResizeForPrint(() => plot.current?.resize(root.current!.clientWidth, height));
  // A range of one metric or axis means nothing on another one.
  useLayoutEffect(() => plot.current?.setZoom(null), [metric, x, across.x_metric, log]);
  useEffect(() => {
    plot.current?.setData({ series, rank: NO_RANKS, source: () => undefined, live: false });
    plot.current?.pick(colours);
  }, [series, colours, height]);

  const none = useMemo(() => logWords(series, log, false), [series, log]);
  const leftOut = useMemo(() => leftOutByLog(series, log, false), [series, log]);
  const shown = hover && series.find((one) => one.number === hover.number);
  const point = shown && hover && pointAt(shown, hover.at, x);
  return (
    <div className={classes.chart}>
      <div
        ref={root}
        className={classes.plot}
        style={{ height }}
        role="img"
        tabIndex={0}
        aria-description={ZOOM_KEYS}
        aria-label={`${metric} of ${names.join(", ")}; the table below has the numbers`}
      />
      {none && (
        <p className={classes.none} style={{ height }}>
          {none}
        </p>
      )}
      {leftOut && <div className={classes.legend}>{leftOut}</div>}
      {hover && point && (
        <div className={classes.tooltip} style={{ left: hover.left, top: hover.top }} data-side={hover.side}>
          <div className={classes.tooltipHead}>
            <i style={{ background: colours.get(hover.number) }} aria-hidden />
            <b>{names[hover.number]}</b>
          </div>
          <div>
            {metric} <b>{written(point.y)}</b> {placeWords(across, point.x)}
          </div>
        </div>
      )}
    </div>
  );
}
