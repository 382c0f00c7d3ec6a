import { useMemo } from "react";
import type { Experiment, Trial } from "../../api/types";
import { trialsCall } from "../../charts/copies";
import { dimensionsOf } from "../../charts/dimensions";
import { trialsRows } from "../../charts/save";
import { bestByNumber, countAxis, dotsOf } from "../../charts/scatter";
import { ScatterChart, type Marking } from "../../charts/ScatterChart";
import { plural } from "../../format";
import type { Sample } from "../../live/changes";
import { Panel } from "../common/Panel";
import classes from "../common/parts.module.css";
import { SampleNote } from "../common/SampleNote";
import { SaveMenu } from "../common/SaveMenu";
import { FinishedLegend } from "../parameters/FinishedLegend";

interface HistoryPanelProps extends Marking {
  experiment: Experiment;
  trials: readonly Trial[];
  sample: Sample | undefined;
  where: readonly string[];
  /** Show the trials as curves over time instead. */
  onCurves: () => void;
}

/** The value of each trial, in the order in which they were started, and the best one so far: for trials that report once. */
export default function HistoryPanel({ experiment, trials, sample, where, onCurves, ...marking }: HistoryPanelProps) {
  const { mode } = experiment;
  const byNumber = useMemo(() => new Map(trials.map((trial) => [trial.number, trial])), [trials]);
  const up = useMemo(() => dimensionsOf(trials, experiment).find((one) => one.objective), [trials, experiment]);
  const steps = useMemo(() => bestByNumber(trials, mode), [trials, mode]);
  const across = useMemo(() => countAxis("trial", 0, Math.max(0, ...trials.map((one) => one.number))), [trials]);
  const dots = useMemo(() => (up ? dotsOf(trials, across, up, (trial) => trial.number) : []), [trials, across, up]);
  return (
    <Panel
      title={`${experiment.metric} of each trial`}
      aside={
        <div className={classes.controls}>
          <button type="button" className={classes.link} onClick={onCurves}>
            show over time
          </button>
          <SaveMenu
            name={`${experiment.name} history`}
            rows={() => trialsRows(trials, marking.only)}
            call={trialsCall(experiment.id, where)}
          />
        </div>
      }
    >
      <SampleNote sample={sample} />
      {up ? (
        <>
          <ScatterChart
            dots={dots}
            across={across}
            up={up}
            trials={byNumber}
            metric={experiment.metric}
            labels={experiment.labels}
            steps={steps}
            height={392}
            label={`${experiment.metric} of ${plural(dots.length, "trial")} by number, and the best so far; the table has the numbers`}
            {...marking}
          />
          <FinishedLegend trials={trials} />
        </>
      ) : (
        <div className={classes.empty} style={{ height: 392 }}>
          No trial has reported a value.
        </div>
      )}
    </Panel>
  );
}
