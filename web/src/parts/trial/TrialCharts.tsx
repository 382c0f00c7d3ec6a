import { Skeleton, useComputedColorScheme } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { api } from "../../api/client";
import { EVERY_POINT } from "../../api/sizes";
import type { Series, TrialCurves, TrialWithSegments } from "../../api/types";
import { trialCurvesCall } from "../../charts/copies";
import { comparedCurvesRows } from "../../charts/save";
import { acrossFor, formatAcross, labelOf, missingWords, placeWords, STEP, type Across } from "../../curves/across";
import { pointAt } from "../../curves/geometry";
import { ZOOM_KEYS } from "../../curves/axes";
import { CurvesPlot, type Hover, type Zoom } from "../../curves/plot";
import { metric as written } from "../../format";
import { hasEnded } from "../../live/states";
import { formatCharts, parseCharts, type ChartView } from "../../pages/address";
import type { Address } from "../../pages/useAddress";
import { keys } from "../../live/useExperiment";
import { useResizeForPrint } from "../../print";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";
import classes from "./TrialDetails.module.css";
import { own } from "../../own";

const REFRESH_MS = 2000;
const HEIGHT = 150;
const USUAL: ChartView = { log: false, zoom: null, x: "" };

interface TrialChartsProps {
  trial: TrialWithSegments;
  /** The objective: its chart comes first. */
  metric: string;
  across: Across;
  rank: number | undefined;
  of: number;
  /** Keeps the scale and the zoom of each chart. */
  address: Address;
}

/** A small chart for each metric that the trial has reported; over iterations if no report has a place on the axis. */
export function TrialCharts({ trial, metric, across: chosen, rank, of, address }: TrialChartsProps) {
  const asked = acrossFor(chosen, metric);
  const over = useTrialCurves(trial, asked, true);
  const missing = formatAcross(asked) !== formatAcross(STEP) && over.data?.items.length === 0;
  const steps = useTrialCurves(trial, STEP, missing);
  const [query, across] = missing ? [steps, STEP] : [over, asked];
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="curves" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={HEIGHT} mb="sm" />;
  const views = parseCharts(address.get("charts"));
  const change = (name: string, view: ChartView) =>
    address.set((get) => ({ charts: formatCharts({ ...parseCharts(get("charts")), [name]: view }) }));
  const items = [...query.data.items].sort((a, b) => Number(b.metric === metric) - Number(a.metric === metric));
  return (
    <div className={classes.charts}>
      {missing && items.length > 0 && <p className={classes.none}>{missingWords(asked, metric)}</p>}
      {items.map((item) => (
        <MetricChart
          key={item.metric}
          item={item}
          trial={trial}
          across={across}
          rank={rank}
          of={of}
          view={own(views, item.metric) ?? USUAL}
          onView={(view) => change(item.metric, view)}
        />
      ))}
    </div>
  );
}

function useTrialCurves(trial: TrialWithSegments, across: Across, enabled: boolean) {
  return useQuery({
    queryKey: keys.trialCurves(trial.id, across),
    queryFn: ({ signal }) => api.trialCurves(trial.id, across, signal),
    enabled,
    refetchInterval: hasEnded(trial.state) ? false : REFRESH_MS,
  });
}

interface MetricChartProps extends Pick<TrialChartsProps, "trial" | "across" | "rank" | "of"> {
  item: TrialCurves["items"][number];
  view: ChartView;
  onView: (view: ChartView) => void;
}

function MetricChart({ item, trial, across, rank, of, view, onView }: MetricChartProps) {
  const root = useRef<HTMLDivElement>(null);
  const plot = useRef<CurvesPlot | null>(null);
  const theme = useComputedColorScheme("light");
  const [hover, setHover] = useState<Hover | null>(null);
  const positive = item.segments.some((segment) => segment.y.some((value) => value !== null && value > 0));
  const log = view.log && positive;
  const x = formatAcross(across);
  const zoom = view.x === x ? view.zoom : null;
  const xLabel = labelOf(across);
  const look = {
    mode: "max" as const,
    objective: false,
    x: across.x,
    xLabel,
    log,
    logX: false,
    trim: false,
    theme,
    rungs: [],
  };
  const first = useRef(look);
  const zoomed = useRef<(zoom: Zoom | null) => void>(() => {});
  const donors = useMemo(
    () => new Map(trial.segments.map((one) => [one.ordinal, one.source_trial_number])),
    [trial.segments],
  );
  const series = useMemo(
    (): Series => ({
      trial_id: trial.id,
      number: trial.number,
      state: trial.state,
      best_value: null,
      segments: item.segments.map((one) =>
        one.cause === "exploit" && donors.get(one.ordinal) === trial.number ? { ...one, own: true as const } : one,
      ),
    }),
    [trial.id, trial.number, trial.state, item, donors],
  );

  useLayoutEffect(() => {
    const made = new CurvesPlot(root.current!, first.current, {
      onHover: setHover,
      onSelect: () => {},
      onOutside: () => {},
      onZoom: (zoom) => zoomed.current(zoom),
    });
    plot.current = made;
    const observer = new ResizeObserver(([entry]) => made.resize(Math.floor(entry!.contentRect.width), HEIGHT));
    observer.observe(root.current!);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, []);
  useLayoutEffect(() => {
    first.current = look;
    zoomed.current = (next) => onView({ log: view.log, zoom: next, x });
    plot.current?.setLook(look);
    plot.current?.setZoom(zoom);
  });
  useResizeForPrint(() => plot.current?.resize(root.current!.clientWidth, HEIGHT));
  useEffect(() => {
    // Use the color of its rank among all trials.
    const ranks = new Map([
      [-1, Math.max(1, of)],
      [trial.number, rank ?? 1],
    ]);
    plot.current?.setData({ series: [series], rank: ranks, source: () => undefined, live: !hasEnded(trial.state) });
  }, [series, rank, of, trial.number, trial.state]);

  const save = async () => {
    const { items } = await api.trialCurves(trial.id, across, undefined, EVERY_POINT);
    const segments = items.find((one) => one.metric === item.metric)?.segments ?? [];
    return comparedCurvesRows([String(trial.number)], [{ ...series, segments }], item.metric, across);
  };
  const point = hover && pointAt(series, hover.at, across.x);
  const last = [...item.segments]
    .reverse()
    .flatMap((segment) => [...segment.y].reverse())
    .find((value) => value !== null);
  return (
    <figure className={classes.metric}>
      <figcaption>
        <b>{item.metric}</b>
        <span>
          {point ? (
            <>
              {written(point.y)}{" "}
              <i>
                {placeWords(across, point.x)}
                {point.ordinal > 1 && `, segment ${point.ordinal}`}
              </i>
            </>
          ) : (
            <>
              {written(last)} <i>last</i>
            </>
          )}
        </span>
        <button
          type="button"
          aria-pressed={log}
          disabled={!positive}
          onClick={() => onView({ ...view, log: !log, zoom: null })}
        >
          log
        </button>
        <SaveMenu
          name={`trial ${trial.number} ${item.metric}`}
          rows={save}
          call={trialCurvesCall([trial.id], across)}
        />
      </figcaption>
      <div
        ref={root}
        style={{ height: HEIGHT }}
        role="img"
        tabIndex={0}
        aria-description={ZOOM_KEYS}
        aria-label={`${item.metric} of trial ${trial.number} over ${xLabel}, last ${written(last)}`}
      />
    </figure>
  );
}
