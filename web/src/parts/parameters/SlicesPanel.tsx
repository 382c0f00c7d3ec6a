import { useMemo, type ReactNode } from "react";
import type { Experiment, Trial } from "../../api/types";
import { trialsCall } from "../../charts/copies";
import { objectiveOf, type Dimension } from "../../charts/dimensions";
import { trialsRows } from "../../charts/save";
import { dotsOf } from "../../charts/scatter";
import { ScatterChart, type Marking } from "../../charts/ScatterChart";
import { counted, plural } from "../../format";
import { Panel } from "../common/Panel";
import classes from "../common/parts.module.css";
import { SaveMenu } from "../common/SaveMenu";
import { FinishedLegend } from "./FinishedLegend";
import { earlyWords } from "./Importance";

interface SlicesPanelProps extends Marking {
  experiment: Experiment;
  trials: readonly Trial[];
  /** In the order in which they are shown, including the objective. */
  dimensions: readonly Dimension[];
  where: readonly string[];
  /** Chooses the objective, if there are several, and which trials to show. */
  choices?: ReactNode;
}

/** The number of parameters to show. They are sorted by importance, so the others matter little. */
const MOST = 12;

/** The objective over each parameter, for the trials that pass the filters; the objective's axis spans their values. */
export default function SlicesPanel(props: SlicesPanelProps) {
  const { experiment, trials, dimensions, where, choices, ...marking } = props;
  const { only } = marking;
  const { metric } = experiment;
  const early = earlyWords(experiment, trials);
  const byNumber = useMemo(() => new Map(trials.map((trial) => [trial.number, trial])), [trials]);
  const parameters = dimensions.filter((one) => !one.objective);
  const { up, slices } = useMemo(() => {
    const chosen = only === null ? trials : trials.filter((trial) => only.has(trial.number));
    const up = objectiveOf(chosen, experiment);
    const shown = dimensions.filter((one) => !one.objective).slice(0, MOST);
    return { up, slices: up ? shown.map((across) => ({ across, dots: dotsOf(chosen, across, up) })) : [] };
  }, [trials, only, dimensions, experiment]);
  if (parameters.length === 0 || dimensions.every((one) => !one.objective)) return null;
  return (
    <Panel
      title={`Each parameter and ${metric}`}
      aside={
        <div className={classes.controls}>
          {choices}
          <SaveMenu
            name={`${experiment.name} slices`}
            rows={() => trialsRows(trials, marking.only)}
            call={trialsCall(experiment.id, where)}
          />
        </div>
      }
    >
      {slices.length === 0 && <p className={classes.noShares}>None of the chosen trials has a result.</p>}
      <div className={classes.slices}>
        {slices.map(({ across, dots }) => (
          <ScatterChart
            key={across.id}
            dots={dots}
            across={across}
            up={up!}
            trials={byNumber}
            metric={counted(experiment)}
            labels={experiment.labels}
            height={210}
            label={`${experiment.metric} of ${plural(dots.length, "trial")} over ${across.label}; the table has the numbers`}
            {...marking}
          />
        ))}
      </div>
      {slices.length > 0 && <FinishedLegend trials={trials} />}
      {slices.length > 0 && early && <p className={classes.noShares}>{early}</p>}
      {parameters.length > MOST && (
        <p className={classes.noShares}>
          The {MOST} most important of {parameters.length} parameters.
        </p>
      )}
    </Panel>
  );
}
