import type { ReactNode } from "react";
import type { Experiment, Trial } from "../../api/types";
import { curvesCall } from "../../charts/copies";
import type { Across } from "../../curves/across";
import { BestChart } from "../../curves/BestChart";
import { expectedOf } from "../../curves/expected";
import { leading, LINE_OF_FIRST_RUNS, metric, ran, runsOf, title } from "../../format";
import { experimentEnded } from "../../live/states";
import { useCurves, type LiveExperiment } from "../../live/useExperiment";
import { Panel } from "../common/Panel";
import { SaveMenu } from "../common/SaveMenu";
import classes from "../common/parts.module.css";
import { useLater } from "../common/useLater";
import { useNow } from "../common/useNow";
import { mayHaveChanged, Parameters, useChanged } from "../trial/Schedule";

interface BestPanelProps {
  experiment: Experiment;
  live: LiveExperiment;
  /**
   * The axis of the curves beside it. The response with these curves also has the best value over time, so it is read
   * only once.
   */
  across: Across;
  /** The best trial; undefined if it is not known. */
  trial: Pick<Trial, "state" | "iteration"> | undefined;
  onSelect: (number: number) => void;
  /** A link to more about the changes of the configuration, if it changed during training. */
  more?: ReactNode;
}

/** The best value over time, and the configuration that reached it. */
export function BestPanel({ experiment, live, across, trial, onSelect, more }: BestPanelProps) {
  const curves = useCurves(live, experiment.metric, across);
  const ended = experimentEnded(experiment.state);
  const now = useNow(!ended);
  const { best } = experiment;
  const own = curves.data?.series.find(({ number }) => number === best?.trial_number);
  const changed = useChanged(
    best?.trial_id ?? "",
    "best",
    best?.iteration,
    own !== undefined && mayHaveChanged(own.segments),
  );
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
              trial {best.trial_number},{" "}
              {best.runs
                ? runsOf(best.runs)
                : `${experiment.scope === "last" ? "last report" : "best"} at iteration ${best.iteration}`}
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
        <>
          <BestChart
            best={soFar}
            label={best?.runs ? `${leading(experiment)} of single runs` : leading(experiment)}
            until={until}
            height={92}
          />
          {best?.runs && <p className={classes.finished}>{LINE_OF_FIRST_RUNS}</p>}
        </>
      ) : (
        !experiment.no_best && (
          <div className={classes.empty} style={{ height: 92 }}>
            {!curves.data ? "Reading…" : ended ? "No trial reported a value." : "Nothing reported yet."}
          </div>
        )
      )}
      {experiment.no_best && <p className={classes.finished}>{experiment.no_best}</p>}
      {best && (
        <Parameters
          scroll="Best configuration"
          params={best.params}
          labels={experiment.labels}
          changed={changed}
          until={best.iteration === null ? "its end" : `iteration ${best.iteration}`}
          more={more}
        />
      )}
      {best?.runs && <Runs experiment={experiment} runs={best.runs} onSelect={onSelect} />}
      {best && !best.runs && trial && (trial.state === "failed" || trial.state === "cancelled") && (
        <p className={classes.caution}>{unfinishedWords(best.trial_number, trial)}</p>
      )}
      {best && !best.runs && <Finished experiment={experiment} onSelect={onSelect} />}
    </Panel>
  );
}

/** Say that the best trial did not train to its end, because it failed or was cancelled. */
export function unfinishedWords(number: number, { state, iteration }: Pick<Trial, "state" | "iteration">): string {
  return `Trial ${number} ${state === "failed" ? "failed" : "was cancelled"} after iteration ${iteration}: it has a good value, but did not train to its end.`;
}

type BestRuns = NonNullable<NonNullable<Experiment["best"]>["runs"]>;

/** After repeats, the best value is a mean: show the single runs, and how much runs of a configuration differ. */
export function Runs({
  experiment,
  runs,
  onSelect,
}: {
  experiment: Pick<Experiment, "metric">;
  runs: BestRuns;
  onSelect: (number: number) => void;
}) {
  const [number, best_value] = [runs.trials[0]!, runs.values[0] ?? null];
  const expected = expectedOf({ runs })?.value({ number, best_value, repeat_of: null }) ?? null;
  return (
    <p className={classes.finished}>
      {title(runsOf(runs))}: <b>{metric(runs.mean)}</b>, from{" "}
      {runs.trials.map((number, i) => (
        <span key={number}>
          {i > 0 && ", "}
          <button type="button" className={classes.link} onClick={() => onSelect(number)}>
            trial {number}
          </button>{" "}
          ({metric(runs.values[i])})
        </span>
      ))}
      . Given {runs.trials.length === 1 ? "this run" : "these runs"},{" "}
      {expected === null ? (
        `the standard deviation of the configuration's expected ${experiment.metric} is`
      ) : (
        <>
          the configuration&apos;s expected {experiment.metric} is <b>{metric(expected)}</b> ±
        </>
      )}{" "}
      {rounded(runs.error)}
      {expected !== null && " (± is its standard deviation)"}. The {experiment.metric} of a configuration differs by
      about {rounded(runs.noise)} from run to run (standard deviation).
    </p>
  );
}

function rounded(value: number | null): string {
  return value === null ? "–" : String(Number(value.toPrecision(2)));
}

/** The best value may be a temporary peak, so also show the best trial that was trained to its end. Repeats replace this: they count single runs. */
function Finished({ experiment, onSelect }: Pick<BestPanelProps, "experiment" | "onSelect">) {
  const { best } = experiment;
  const finished = best?.finished;
  if (finished) {
    // The panel has said so above.
    if (finished.trial_number === best.trial_number && finished.value === best.value) return null;
    return (
      <p className={classes.finished}>
        Best last value of the completed trials: <b>{metric(finished.value)}</b> by{" "}
        <button type="button" className={classes.link} onClick={() => onSelect(finished.trial_number)}>
          trial {finished.trial_number}
        </button>{" "}
        at iteration {finished.iteration}.
        {experiment.scope === "all" &&
          finished.trial_number !== best.trial_number &&
          ` Trial ${best.trial_number} leads because one of its reports, not its last one, was the best of all.`}
      </p>
    );
  }
  if (!experimentEnded(experiment.state) || experiment.counts.completed > 0) return null;
  return <p className={classes.finished}>No trial was trained to its end, so the best value may not hold.</p>;
}
