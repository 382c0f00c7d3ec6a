import type { Experiment } from "../../api/types";
import { curvesCall } from "../../charts/copies";
import type { Across } from "../../curves/across";
import { BestChart } from "../../curves/BestChart";
import { leading, metric, param, paramName, ran, readable } from "../../format";
import { experimentEnded } from "../../live/states";
import { useCurves, type LiveExperiment } from "../../live/useExperiment";
import { Facts, Panel } from "../common/Panel";
import { SaveMenu } from "../common/SaveMenu";
import classes from "../common/parts.module.css";
import { useLater } from "../common/useLater";
import { useNow } from "../common/useNow";

interface BestPanelProps {
  experiment: Experiment;
  live: LiveExperiment;
  /** The axis of the curves beside it: the same answer has the best value over time, so it is read once. */
  across: Across;
  onSelect: (number: number) => void;
}

/** The best value over time, and the configuration that reached it. */
export function BestPanel({ experiment, live, across, onSelect }: BestPanelProps) {
  const curves = useCurves(live, experiment.metric, across);
  const ended = experimentEnded(experiment.state);
  const now = useNow(!ended);
  const { best } = experiment;
  const until = ran(experiment, now);
  const soFar = curves.data?.best_so_far;
  // The answer is asked for together with the curves beside it, but those are drawn first.
  const later = useLater();
  if (!later) return null;
  return (
    <Panel
      title={`${leading(experiment)} so far`}
      aside={
        <div className={classes.controls}>
          {best && (
            <button type="button" className={classes.link} onClick={() => onSelect(best.trial_number)}>
              trial {best.trial_number}, iteration {best.iteration}
            </button>
          )}
          {soFar && (
            <SaveMenu
              name={`${experiment.name} best ${experiment.metric}`}
              rows={() => [["seconds", experiment.metric], ...soFar.x.map((at, i) => [at, soFar.y[i]])]}
              call={curvesCall(experiment.id, experiment.metric, across)}
            />
          )}
        </div>
      }
    >
      {soFar && soFar.x.length > 0 ? (
        <BestChart best={soFar} label={leading(experiment)} until={until} height={92} />
      ) : (
        !experiment.no_best && (
          <div className={classes.empty} style={{ height: 92 }}>
            {!curves.data ? "Reading…" : ended ? "No trial reported a value." : "Nothing reported yet."}
          </div>
        )
      )}
      {experiment.no_best && <p className={classes.finished}>{experiment.no_best}</p>}
      {best && (
        <Facts
          scroll="Best configuration"
          items={Object.entries(readable(best.params, experiment.labels)).map(([name, value]) => [
            paramName(name),
            <span title={JSON.stringify(value)}>{param(value)}</span>,
          ])}
        />
      )}
      {best && <Finished experiment={experiment} onSelect={onSelect} />}
    </Panel>
  );
}

/** The best value may be a peak that was lost again: say what the best trial that was trained to its end has come to. */
function Finished({ experiment, onSelect }: Pick<BestPanelProps, "experiment" | "onSelect">) {
  const finished = experiment.best?.finished;
  if (finished) {
    return (
      <p className={classes.finished}>
        Best of the completed trials at their end: <b>{metric(finished.value)}</b> by{" "}
        <button type="button" className={classes.link} onClick={() => onSelect(finished.trial_number)}>
          trial {finished.trial_number}
        </button>
        , trained to iteration {finished.iteration}
      </p>
    );
  }
  if (!experimentEnded(experiment.state) || experiment.counts.completed > 0) return null;
  return <p className={classes.finished}>No trial was trained to its end, so the best value may not last.</p>;
}
