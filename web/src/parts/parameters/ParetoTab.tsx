import { useMemo } from "react";
import type { Experiment, Trial } from "../../api/types";
import { hypervolumeCall, trialsCall } from "../../charts/copies";
import { firstOf, HYPERVOLUME, pointsOf } from "../../charts/pareto";
import { trialsRows } from "../../charts/save";
import { BestChart } from "../../curves/BestChart";
import { ParetoChart } from "../../charts/ParetoChart";
import { plural, ran } from "../../format";
import { experimentEnded } from "../../live/states";
import { useHypervolume } from "../../live/useHypervolume";
import type { Address } from "../../pages/useAddress";
import type { Sample } from "../../live/changes";
import { Panel } from "../common/Panel";
import { SaveMenu } from "../common/SaveMenu";
import { SampleNote } from "../common/SampleNote";
import { Select } from "../common/Select";
import { useNow } from "../common/useNow";
import classes from "../common/parts.module.css";

interface ParetoTabProps {
  experiment: Experiment;
  trials: readonly Trial[];
  /** The fronts of the trials, by number. */
  fronts: ReadonlyMap<number, number>;
  byNumber: ReadonlyMap<number, Trial>;
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

/** Plot two of the objectives against each other, with a point for each trial, and the Pareto front. */
export default function ParetoTab({
  experiment,
  sample,
  trials,
  fronts,
  byNumber,
  where,
  address,
  ...rest
}: ParetoTabProps) {
  const { objectives } = experiment;
  const points = useMemo(() => pointsOf(trials, objectives), [trials, objectives]);
  const front = useMemo(() => firstOf(fronts), [fronts]);
  const names = objectives.map(({ metric }) => metric);
  const index = (name: string | null, other: number) =>
    name !== null && names.includes(name) ? names.indexOf(name) : other;
  const x = index(address.get("fx"), 0);
  const y = index(address.get("fy"), x === 1 ? 0 : 1);
  const axes = useMemo(() => [x, y] as const, [x, y]);
  const growth = useHypervolume(experiment, true);
  // Of very many trials, only a sample is here, but the service counts all of them.
  const counted = sample && !sample.complete ? growth : { front: front.size, of: points.length };
  const now = useNow(!experimentEnded(experiment.state));
  return (
    <>
      <Panel
        title={counted ? `Pareto front · ${counted.front} of ${plural(counted.of, "trial")}` : "Pareto front"}
        aside={
          <div className={classes.controls}>
            {names.length > 2 && (
              <>
                <Select
                  size="xs"
                  w={150}
                  aria-label="Horizontal objective"
                  allowDeselect={false}
                  data={names}
                  value={names[x]!}
                  onChange={(value) => address.set({ fx: value })}
                />
                <Select
                  size="xs"
                  w={150}
                  aria-label="Vertical objective"
                  allowDeselect={false}
                  data={names}
                  value={names[y]!}
                  onChange={(value) => address.set({ fy: value })}
                />
              </>
            )}
            <SaveMenu
              name={`${experiment.name} objectives`}
              rows={() => trialsRows(trials, rest.only)}
              call={trialsCall(experiment.id, where)}
            />
          </div>
        }
      >
        <SampleNote sample={sample} />
        {points.length > 0 ? (
          <ParetoChart
            points={points}
            front={front}
            objectives={objectives}
            axes={axes}
            trials={byNumber}
            labels={experiment.labels}
            height={420}
            {...rest}
          />
        ) : (
          <div className={classes.empty} style={{ height: 240 }}>
            {experimentEnded(experiment.state)
              ? `No trial reported all of ${names.join(", ")}.`
              : `A trial appears here once it has reported ${names.join(" and ")}.`}
          </div>
        )}
        {names.length > 2 && (
          <p className={classes.noShares}>
            The front takes all {names.length} objectives into account; two of them are drawn.
          </p>
        )}
      </Panel>
      {growth && growth.x.length > 0 && (
        <Panel
          title="Hypervolume over time"
          aside={
            <SaveMenu
              name={`${experiment.name} hypervolume`}
              rows={() => [["seconds", "hypervolume"], ...growth.x.map((at, i) => [at, growth.y[i]])]}
              call={hypervolumeCall(experiment.id)}
            />
          }
        >
          <BestChart best={growth} label="Best hypervolume" until={ran(experiment, now)} height={150} />
          <p className={classes.noShares}>{HYPERVOLUME}</p>
        </Panel>
      )}
    </>
  );
}
