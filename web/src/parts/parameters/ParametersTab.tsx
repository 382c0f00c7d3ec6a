import { Switch } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { api } from "../../api/client";
import type { Experiment, Trial } from "../../api/types";
import { trialsCall } from "../../charts/copies";
import { trialsRows } from "../../charts/save";
import { ParallelChart } from "../../charts/ParallelChart";
import { BY_FRONT, frontsOf, pointsOf, ranksByFront } from "../../charts/pareto";
import { isFinished } from "../../charts/scatter";
import { ABSENT, inOrder, underObjective, valueless, valueOf, type Dimension } from "../../charts/dimensions";
import { ranks } from "../../curves/colours";
import { expectedOf } from "../../curves/expected";
import { RankScale } from "../../curves/RankScale";
import { keys } from "../../live/useExperiment";
import { formatList, parseList, withBrush, type Brushes, type Chosen } from "../../pages/address";
import type { Address } from "../../pages/useAddress";
import { Select } from "../common/Select";
import { ContourPanel } from "./ContourPanel";
import { FinishedLegend } from "./FinishedLegend";
import Importance, { earlyWords } from "./Importance";
import type { Sample } from "../../live/changes";
import { Panel } from "../common/Panel";
import { SaveMenu } from "../common/SaveMenu";
import { SampleNote } from "../common/SampleNote";
import SlicesPanel from "./SlicesPanel";
import classes from "../common/parts.module.css";
import { useAtOnce } from "../common/useAtOnce";

interface ParametersTabProps {
  experiment: Experiment;
  trials: readonly Trial[];
  dimensions: readonly Dimension[];
  rank: ReadonlyMap<number, number>;
  brushes: Brushes;
  sample: Sample | undefined;
  /** The colors of the picked trials, by number. */
  colours: ReadonlyMap<number, string>;
  only: ReadonlySet<number> | null;
  selected: number | null;
  pointed: number | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
  /** The filters as conditions of the service. */
  where: readonly string[];
  address: Address;
}

/** The number of parameters that have an axis at first. With many more, the page is slow, and some browsers have no canvas so wide. */
const MOST_AXES = 50;

/**
 * Return the axes to draw at first: those of the first parameters, of the objectives, and those with a selection. A less important
 * parameter with a selection takes no other axis's place, wherever it is moved. `usual`: the axes before any was moved.
 */
export function firstAxes(
  ordered: readonly Dimension[],
  brushes: Brushes,
  usual: readonly Dimension[] = ordered,
): readonly Dimension[] {
  const important = new Set(
    usual
      .filter((one) => !one.objective)
      .slice(0, MOST_AXES)
      .map(({ id }) => id),
  );
  const counted = ordered.filter(({ id, objective }) => !objective && (important.has(id) || !(id in brushes)));
  const first = new Set(counted.slice(0, MOST_AXES));
  return ordered.filter((one) => one.objective || one.id in brushes || first.has(one));
}

/** Say how many trials ended without a value, and whether the parallel coordinates show them. */
export function emptyWords(empty: readonly Pick<Trial, "state">[], shown: boolean): string {
  const kinds = (["failed", "cancelled"] as const).flatMap((state) => {
    const count = empty.filter((one) => one.state === state).length;
    return count > 0 ? [`${count} ${state}`] : [];
  });
  const trials = empty.length === 1 ? "trial" : "trials";
  const verb = empty.length === 1 ? "is" : "are";
  return `${kinds.join(" and ")} ${trials} without a result ${verb} ${shown ? 'drawn to "no value"' : "left out"}.`;
}

/** Show how parameters and results are related: all trials on parallel axes, and how much each parameter mattered. */
export default function ParametersTab({
  experiment,
  sample,
  trials,
  dimensions,
  brushes,
  where,
  address,
  rank,
  ...rest
}: ParametersTabProps) {
  const names = experiment.objectives.map(({ metric }) => metric);
  const asked = address.get("objective");
  const metric = asked !== null && asked !== experiment.metric && names.includes(asked) ? asked : null;
  const shown = useMemo(() => underObjective(experiment, trials, metric), [experiment, trials, metric]);
  const several = names.length > 1;
  // With several objectives, `rank` has the ranks by front.
  const places = useMemo(() => (several ? ranks(shown.trials, shown.experiment.mode) : rank), [several, rank, shown]);
  const objective = several && (
    <Select
      size="xs"
      w={150}
      aria-label="Objective"
      allowDeselect={false}
      data={names}
      value={metric ?? experiment.metric}
      onChange={(value) => address.set({ objective: value === experiment.metric ? null : value })}
    />
  );
  // Values at different iterations are not comparable, so users can leave out trials that were stopped
  // early.
  const mixed = shown.trials.some(isFinished) && !shown.trials.every(isFinished);
  const finishedOnly = mixed && address.get("finished") !== null;
  const [onlyFinished, setOnlyFinished] = useAtOnce(finishedOnly, (on) =>
    address.set({ finished: on ? "only" : null }),
  );
  const plotted = useMemo(() => {
    if (!finishedOnly) return { trials: shown.trials, rank: places };
    const trials = shown.trials.filter(isFinished);
    const expected = metric === null ? expectedOf(experiment.best) : null;
    return { trials, rank: ranks(trials, shown.experiment.mode, expected) };
  }, [finishedOnly, shown, places, metric, experiment.best]);
  const finishedSwitch = mixed && (
    <Switch
      size="xs"
      label="completed trials only"
      checked={onlyFinished}
      onChange={(event) => setOnlyFinished(event.currentTarget.checked)}
    />
  );
  const coloured = address.get("color");
  const colour = several && coloured !== null && names.includes(coloured) ? coloured : null;
  const empty = useMemo(() => valueless(trials, dimensions), [trials, dimensions]);
  const withEmpty = address.get("empty") !== null;
  const valued = useMemo(
    () => (withEmpty || empty.length === 0 ? trials : trials.filter((trial) => !empty.includes(trial))),
    [withEmpty, empty, trials],
  );
  const parallel = useMemo(() => {
    const among = finishedOnly ? trials.filter(isFinished) : valued;
    if (!several) return { trials: among, rank: plotted.rank };
    if (colour !== null) {
      const under = underObjective(experiment, among, colour);
      return { trials: among, rank: ranks(under.trials, under.experiment.mode) };
    }
    const { objectives } = experiment;
    return {
      trials: among,
      rank: finishedOnly ? ranksByFront(frontsOf(pointsOf(among, objectives), objectives)) : rank,
    };
  }, [several, finishedOnly, trials, valued, plotted.rank, colour, experiment, rank]);
  const early = earlyWords(experiment, parallel.trials);
  const chosenWhere = finishedOnly ? [...where, "state=completed"] : where;
  const choices = (
    <>
      {finishedSwitch}
      {objective}
    </>
  );
  // The most important parameters come first. The order stays while trials are chosen, so that no axis moves under the mouse.
  const importance = useQuery({
    queryKey: keys.importance(experiment.id),
    queryFn: ({ signal }) => api.importance(experiment.id, null, [], signal),
  });
  const items = importance.data?.items;
  const byImportance = useMemo(() => {
    const place = new Map(items?.map(({ parameter }, i) => [parameter, i]));
    const placeOf = ({ id }: Dimension) => place.get(id) ?? Infinity;
    return [...dimensions].sort((a, b) => Number(a.objective) - Number(b.objective) || placeOf(a) - placeOf(b) || 0);
  }, [dimensions, items]);
  const axesText = address.get("axes");
  const ordered = useMemo(() => inOrder(byImportance, parseList(axesText)), [byImportance, axesText]);
  const [everyAxis, setEveryAxis] = useState(false);
  const drawn = useMemo(
    () => (everyAxis ? ordered : firstAxes(ordered, brushes, byImportance)),
    [everyAxis, ordered, brushes, byImportance],
  );
  const parameters = ordered.filter((one) => !one.objective).length;
  // An axis has a place for missing values only if a trial that is drawn needs it.
  const axes = useMemo(
    () =>
      drawn.map((one) => ({
        ...one,
        optional: one.optional && parallel.trials.some((trial) => valueOf(trial, one) === ABSENT),
      })),
    [drawn, parallel.trials],
  );
  const onMove = (id: string, to: number) => {
    const others = drawn.map((one) => one.id).filter((one) => one !== id);
    address.set({ axes: formatList([...others.slice(0, to), id, ...others.slice(to)]) });
  };
  const onBrush = (id: string, chosen: Chosen | null) =>
    address.set((get) => ({ brush: withBrush(get("brush"), id, chosen) }));
  return (
    <>
      <Panel
        title="Parallel coordinates"
        aside={
          <>
            <span className={classes.dimmed}>
              drag along an axis to select trials, click it to clear the selection; drag a name to move its axis
            </span>
            {axesText && (
              <button type="button" className={classes.link} onClick={() => address.set({ axes: null })}>
                order by importance
              </button>
            )}
            {finishedSwitch}
            {several && (
              <Select
                size="xs"
                w={150}
                aria-label="Colors"
                allowDeselect={false}
                data={[{ value: "", label: "colors by front" }, ...names]}
                value={colour ?? ""}
                onChange={(value) => address.set({ color: value || null })}
              />
            )}
            <SaveMenu
              name={`${experiment.name} parameters`}
              rows={() => trialsRows(plotted.trials, rest.only)}
              call={trialsCall(experiment.id, chosenWhere)}
            />
          </>
        }
      >
        <SampleNote sample={sample} />
        {ordered.length > 1 ? (
          <>
            <ParallelChart
              trials={parallel.trials}
              dimensions={axes}
              brushes={brushes}
              onBrush={onBrush}
              onMove={onMove}
              height={340}
              rank={parallel.rank}
              {...rest}
            />
            {parallel.rank.size > 0 && (
              <p className={`${classes.controls} ${classes.noShares}`}>
                {several && colour === null ? (
                  <RankScale rank={parallel.rank} by="front" title={BY_FRONT} />
                ) : (
                  <RankScale rank={parallel.rank} by={colour ?? experiment.metric} />
                )}
              </p>
            )}
            {early ? (
              <p className={classes.noShares}>{early}</p>
            ) : (
              <FinishedLegend trials={parallel.trials} symbols={false} />
            )}
            {parameters > MOST_AXES && (
              <p className={classes.noShares}>
                {everyAxis
                  ? `All ${parameters} parameters are shown.`
                  : `The first ${MOST_AXES} of ${parameters} parameters are shown.`}{" "}
                <button type="button" className={classes.link} onClick={() => setEveryAxis(!everyAxis)}>
                  {everyAxis ? `Show the first ${MOST_AXES}` : "Show all"}
                </button>
              </p>
            )}
            {empty.length > 0 && !finishedOnly && (
              <p className={classes.noShares}>
                {emptyWords(empty, withEmpty)}{" "}
                <button
                  type="button"
                  className={classes.link}
                  onClick={() => address.set({ empty: withEmpty ? null : "shown" })}
                >
                  {withEmpty ? "Leave them out" : "Show them"}
                </button>
              </p>
            )}
          </>
        ) : (
          <div className={classes.empty} style={{ height: 160 }}>
            {trials.length ? "There is one parameter with one value." : "No trial has been started yet."}
          </div>
        )}
      </Panel>
      <Importance experiment={experiment} where={chosenWhere} metric={metric} objective={objective} />
      <SlicesPanel
        experiment={shown.experiment}
        trials={plotted.trials}
        dimensions={byImportance}
        where={chosenWhere}
        choices={choices}
        rank={plotted.rank}
        {...rest}
      />
      <ContourPanel
        experiment={shown.experiment}
        trials={plotted.trials}
        dimensions={byImportance}
        where={chosenWhere}
        address={address}
        choices={choices}
        ranked={finishedOnly ? "the completed trials" : "all trials"}
        rank={plotted.rank}
        {...rest}
      />
    </>
  );
}
