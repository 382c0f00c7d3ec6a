import type { Experiment, XAxis } from "../api/types";
import { BestChart } from "../curves/BestChart";
import { elapsed, param } from "../format";
import { experimentEnded, useCurves, type LiveExperiment } from "../live/useExperiment";
import { Facts, Panel } from "./Panel";
import classes from "./parts.module.css";
import { useNow } from "./useNow";

interface BestPanelProps {
  experiment: Experiment;
  live: LiveExperiment;
  /** The axis of the curves beside it: the same answer has the best value over time, so it is read once. */
  x: XAxis;
  onSelect: (number: number) => void;
}

/** The best value over time, and the configuration that reached it. */
export function BestPanel({ experiment, live, x, onSelect }: BestPanelProps) {
  const curves = useCurves(live, experiment.metric, x);
  const ended = experimentEnded(experiment.state);
  const now = useNow(!ended);
  const { best } = experiment;
  const until = elapsed(experiment.started_at, experiment.ended_at, now);
  const soFar = curves.data?.best_so_far;
  return (
    <>
      <Panel title={`Best ${experiment.metric} so far`}>
        {soFar && soFar.x.length > 0
          ? <BestChart best={soFar} metric={experiment.metric} until={until} height={118} />
          : <div className={classes.empty} style={{ height: 118 }}>{!curves.data ? "Reading…" : ended ? "No trial reported a value." : "Nothing reported yet."}</div>}
      </Panel>
      <Panel
        title="Best configuration"
        aside={best && <button type="button" className={classes.link} onClick={() => onSelect(best.trial_number)}>trial {best.trial_number}, iteration {best.iteration}</button>}
      >
        {best
          ? <Facts scroll items={Object.entries(best.params).map(([name, value]) => [name, <span title={JSON.stringify(value)}>{param(value)}</span>])} />
          : <span className={classes.dimmed}>{ended ? "There is none, as no trial reported a value." : "Known with the first report."}</span>}
      </Panel>
    </>
  );
}
