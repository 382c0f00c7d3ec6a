import { useMemo } from "react";
import type { Experiment, Trial } from "../api/types";
import { trialsCall } from "../charts/copies";
import type { Dimension } from "../charts/dimensions";
import { trialsCsv } from "../charts/save";
import { dotsOf } from "../charts/scatter";
import { ScatterChart, type Marking } from "../charts/ScatterChart";
import { Panel } from "./Panel";
import classes from "./parts.module.css";
import { SaveMenu } from "./SaveMenu";

interface SlicesPanelProps extends Marking {
  experiment: Experiment;
  trials: readonly Trial[];
  /** In the order in which they are shown; the objective among them. */
  dimensions: readonly Dimension[];
  where: readonly string[];
}

/** The first of many parameters: those behind them matter little. */
const MOST = 12;

/** The objective over each parameter. */
export default function SlicesPanel({ experiment, trials, dimensions, where, ...marking }: SlicesPanelProps) {
  const byNumber = useMemo(() => new Map(trials.map((trial) => [trial.number, trial])), [trials]);
  const up = dimensions.find((one) => one.objective);
  const parameters = dimensions.filter((one) => !one.objective);
  const slices = useMemo(() => {
    const objective = dimensions.find((one) => one.objective);
    const shown = dimensions.filter((one) => !one.objective).slice(0, MOST);
    return objective ? shown.map((across) => ({ across, dots: dotsOf(trials, across, objective) })) : [];
  }, [trials, dimensions]);
  if (!up || slices.length === 0) return null;
  return (
    <Panel
      title={`${experiment.metric} over each parameter`}
      aside={
        <SaveMenu
          name={`${experiment.name} slices`}
          csv={() => trialsCsv(trials, marking.only)}
          call={trialsCall(experiment.id, where)}
        />
      }
    >
      <div className={classes.slices}>
        {slices.map(({ across, dots }) => (
          <ScatterChart
            key={across.id}
            dots={dots}
            across={across}
            up={up}
            trials={byNumber}
            metric={experiment.metric}
            height={210}
            label={`${experiment.metric} of ${dots.length} trials over ${across.label}; the table has the numbers`}
            {...marking}
          />
        ))}
      </div>
      {parameters.length > MOST && (
        <p className={classes.noShares}>
          The {MOST} most important of {parameters.length} parameters.
        </p>
      )}
    </Panel>
  );
}
