import { useMediaQuery } from "@mantine/hooks";
import { useCallback, useMemo } from "react";
import type { Curves, Experiment, Trial } from "../../api/types";
import { curvesCall } from "../../charts/copies";
import { curvesRows } from "../../charts/save";
import { acrossFor, acrossOf, chosenAcross, formatAcross, missingWords, type Across } from "../../curves/across";
import { CurvesChart } from "../../curves/CurvesChart";
import { ofReplay, tookOver } from "../../curves/geometry";
import { rungLevels } from "../../curves/rungs";
import { experimentEnded } from "../../live/states";
import { useCurves, useFinerCurves, useSources, withEveryReport, type LiveExperiment } from "../../live/useExperiment";
import { formatZoom, parseZoom } from "../../pages/address";
import type { Address } from "../../pages/useAddress";
import type { Sample } from "../../live/changes";
import { Panel } from "../common/Panel";
import { SaveMenu } from "../common/SaveMenu";
import { SampleNote } from "../common/SampleNote";
import { Select } from "../common/Select";
import classes from "../common/parts.module.css";
import { ProblemBox } from "../common/Problem";
import { useKeys } from "../common/useKeys";
import { useSame } from "../common/useSame";
import { AcrossSelect, AxisControls, LinearOrLog, MetricSelect } from "./controls";

interface CurvesPanelProps {
  experiment: Experiment;
  live: LiveExperiment;
  trials: ReadonlyMap<number, Trial>;
  rank: ReadonlyMap<number, number>;
  sample: Sample | undefined;
  /** The colors of the picked trials, by number. */
  colours: ReadonlyMap<number, string>;
  only: ReadonlySet<number> | null;
  selected: number | null;
  pointed: number | null;
  onSelect: (number: number) => void;
  address: Address;
}

const NO_RUNGS: readonly number[] = [];
const MOST_SMOOTH = 0.98;
const TOP = [5, 10, 25, 100] as const;

/**
 * Return the axes. By default, curves are drawn over what the scheduler measures training in, on a log axis if several
 * rungs lie at multiples; and over time if no trial reports twice.
 */
export function axesOf(
  experiment: Experiment,
  trials: Iterable<Trial>,
  address: Pick<Address, "get">,
  metric: string,
): { across: Across; logX: boolean; log: boolean; rungs: readonly number[] } {
  // Before the trials are loaded, assume that they report more than once, as most do.
  const known = [...trials];
  const single = known.length > 0 && experimentEnded(experiment.state) && known.every((trial) => trial.iteration <= 1);
  const across = acrossFor(chosenAcross(address.get("x") ?? (single ? "time" : null), experiment), metric);
  const rungs = formatAcross(across) === acrossOf(experiment.time_attr) ? rungLevels(experiment) : NO_RUNGS;
  const scale = address.get("xs");
  return {
    across,
    logX: scale === null ? rungs.length > 1 : scale === "log",
    log: address.get("y") === "log",
    rungs,
  };
}

export function CurvesPanel({
  experiment,
  live,
  trials,
  sample,
  colours,
  rank,
  only,
  selected,
  pointed,
  onSelect,
  address,
}: CurvesPanelProps) {
  const phone = useMediaQuery("(max-width: 640px)") ?? false;
  const metrics = [...new Set([experiment.metric, ...experiment.metrics])];
  const asked = address.get("metric");
  const metric = asked !== null && metrics.includes(asked) ? asked : experiment.metric;
  const { across, logX, log, rungs } = axesOf(experiment, trials.values(), address, metric);
  const sameRungs = useSame(rungs, rungs);
  const trim = address.get("all") === null;
  const zoomText = address.get("zoom");
  const zoom = useMemo(() => parseZoom(zoomText), [zoomText]);
  const query = useCurves(live, metric, across);
  const finer = useFinerCurves(live, query.data, zoom?.x ?? null);
  const replay = isReplay(experiment);
  const read = finer ?? query.data;
  const curves = useMemo(() => read && marked(read, replay), [read, replay]);
  const whole = useMemo(() => query.data && marked(query.data, replay), [query.data, replay]);
  const exploits = curves?.series.some((series) => series.segments.some(tookOver)) ?? false;
  const { source } = useSources(live, exploits);
  const { set } = address;
  useKeys({ l: () => set({ y: log ? null : "log", zoom: null }) });
  const onZoom = useCallback(
    (part: Parameters<typeof formatZoom>[0] | null) => set({ zoom: part && formatZoom(part) }),
    [set],
  );
  const reported = query.data?.series.some((series) => series.segments.length > 0);
  const height = phone ? 280 : 392;
  const smoothing = Math.min(MOST_SMOOTH, Math.max(0, Number(address.get("smooth")) || 0));
  const top = TOP.find((one) => String(one) === address.get("top")) ?? null;
  const drawn = useMemo(() => {
    if (top === null) return only;
    const best = [...rank].filter(([number, place]) => place <= top && (only === null || only.has(number)));
    return new Set([...best.map(([number]) => number), ...colours.keys()]);
  }, [top, rank, only, colours]);
  const save = async () => (whole ? curvesRows(await withEveryReport(experiment, whole), drawn) : []);
  return (
    <Panel
      title={
        <MetricSelect
          metrics={metrics}
          value={metric}
          width={120}
          onChange={(value) => set({ metric: value === experiment.metric ? null : value, zoom: null })}
        />
      }
      aside={
        <div className={classes.controls}>
          <AxisControls name="x">
            <AcrossSelect
              metrics={metrics}
              metric={metric}
              across={across}
              onChange={(value) => set({ x: value, xs: null, zoom: null })}
            />
            <LinearOrLog
              label="Horizontal scale"
              log={logX}
              onChange={(on) => set({ xs: on ? "log" : "linear", zoom: null })}
            />
          </AxisControls>
          <AxisControls name="y">
            <LinearOrLog label="Vertical axis" log={log} onChange={(on) => set({ y: on ? "log" : null, zoom: null })} />
          </AxisControls>
          <Select
            size="xs"
            w={88}
            aria-label="How many curves"
            allowDeselect={false}
            data={[{ value: "", label: "all" }, ...TOP.map((one) => ({ value: String(one), label: `best ${one}` }))]}
            value={top === null ? "" : String(top)}
            onChange={(value) => set({ top: value || null })}
          />
          <label
            className={classes.smooth}
            title="Exponential moving average; the reported curves stay visible, faintly"
          >
            smooth
            <input
              type="range"
              min={0}
              max={MOST_SMOOTH}
              step={0.02}
              value={smoothing}
              onChange={(event) =>
                set({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })
              }
            />
          </label>
          <SaveMenu
            name={`${experiment.name} ${metric}`}
            rows={save}
            call={curvesCall(experiment.id, metric, across)}
          />
        </div>
      }
    >
      <SampleNote sample={sample} />
      {query.isError && !query.data && (
        <ProblemBox error={query.error} what="curves" retry={() => void query.refetch()} />
      )}
      {curves && reported && drawn?.size === 0 ? (
        <div className={classes.empty} style={{ height }}>
          No trial passes the filters, so there is no curve. Remove the filters in the table below.
        </div>
      ) : curves && whole && reported ? (
        <CurvesChart
          curves={curves}
          whole={whole}
          only={drawn}
          smoothing={smoothing}
          colours={colours}
          objective={experiment}
          rank={rank}
          byFront={experiment.objectives.length > 1}
          trials={trials}
          source={source}
          live={!experimentEnded(experiment.state)}
          log={log}
          logX={logX}
          rungs={formatAcross(curves) === formatAcross(across) ? sameRungs : NO_RUNGS}
          trim={trim}
          onTrim={(on) => set({ all: on ? null : "1", zoom: null })}
          zoom={zoom}
          onZoom={onZoom}
          selected={selected}
          marked={pointed}
          onSelect={onSelect}
          height={height}
        />
      ) : (
        !query.isError && (
          <div className={classes.empty} style={{ height }}>
            {query.data ? waitingWords(experiment, across, metric) : "Reading the curves…"}
          </div>
        )
      )}
    </Panel>
  );
}

/** Return true if trials follow a schedule: their exploits continue from their own checkpoints. */
export function isReplay({ scheduler, resolved }: Pick<Experiment, "scheduler" | "resolved">): boolean {
  return (resolved?.scheduler["type"] ?? scheduler["type"]) === "pbt_replay";
}

/** Mark the exploits of a replayed schedule. */
function marked(curves: Curves, replay: boolean): Curves {
  return replay ? { ...curves, series: curves.series.map(ofReplay) } : curves;
}

export function waitingWords(
  experiment: Pick<Experiment, "metrics" | "state" | "trials">,
  across: Across,
  metric: string,
): string {
  if (experiment.metrics.includes(metric)) return missingWords(across, metric) ?? "Reading the curves…";
  if (experiment.metrics.length > 0) return `No trial has reported ${metric} yet.`;
  if (experimentEnded(experiment.state)) return "The experiment ended before any trial reported.";
  if (experiment.trials === 0) return "Waiting for the first trial to start.";
  return "Waiting for the first report. Each tuner.report() adds a point here.";
}
