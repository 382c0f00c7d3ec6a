import { useDebouncedValue } from "@mantine/hooks";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment, Importances, Trial } from "../../api/types";
import { importanceCall } from "../../charts/copies";
import { isFinished } from "../../charts/scatter";
import { paramName, plural, type Labels } from "../../format";
import { experimentEnded, isPopulationBased } from "../../live/states";
import { keys } from "../../live/useExperiment";
import { Panel } from "../common/Panel";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";
import classes from "../common/parts.module.css";
import { Loading } from "../common/Loading";

const TITLE = "Importance of parameters";
const REFRESH_MS = 20_000;
/** Milliseconds without a change of the filters before the service is asked again. */
const SETTLE_MS = 200;
/** With fewer trials than this for each parameter, the page warns that the shares are only a hint. */
const PER_PARAMETER = 15;

interface ImportanceProps {
  experiment: Experiment;
  /** The filters as conditions of the service; only trials that meet them count. */
  where: readonly string[];
  /** The objective; null for the first one. */
  metric?: string | null;
  /** Chooses the objective, if there are several. */
  objective?: ReactNode;
}

/** Show how much each parameter mattered for an objective, as far as the trials that have ended can tell. */
export default function Importance({ experiment, where, metric = null, objective }: ImportanceProps) {
  const [chosen] = useDebouncedValue(where, SETTLE_MS);
  const query = useQuery({
    queryKey: keys.importance(experiment.id, metric, chosen),
    queryFn: ({ signal }) => api.importance(experiment.id, metric, chosen, signal),
    refetchInterval: experimentEnded(experiment.state) ? false : REFRESH_MS,
    placeholderData: keepPreviousData,
  });
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="importance of parameters" retry={() => void query.refetch()} />;
  if (!query.data)
    return (
      <Panel title={TITLE}>
        <Loading what="importance" height={60} />
      </Panel>
    );
  const { items } = query.data;
  return (
    <Panel
      title={experiment.objectives.length > 1 ? `${TITLE} for ${query.data.metric}` : TITLE}
      aside={
        <div className={classes.controls}>
          {objective}
          {items.length > 0 && (
            <SaveMenu
              name={`${experiment.name} importance`}
              rows={() => [["parameter", "share"], ...items.map(({ parameter, share }) => [parameter, share])]}
              call={importanceCall(experiment.id, where, metric)}
            />
          )}
        </div>
      }
    >
      <Shares
        found={query.data}
        caution={cautionOf(query.data, experiment)}
        labels={experiment.labels}
        chosen={chosen.length > 0}
        ended={experimentEnded(experiment.state)}
      />
    </Panel>
  );
}

/** The states of trials that have values of less than a full training, and do not train now. */
const EARLY = ["stopped", "failed", "cancelled", "paused"] as const;

/** Say what plots of the parameters hide if trials changed their parameters, or if most were stopped early; else null. */
export function earlyWords(
  experiment: Pick<Experiment, "counts" | "trials" | "scheduler" | "resolved">,
  shown: readonly Pick<Trial, "state">[],
): string | null {
  if (isPopulationBased(experiment))
    return "Trials may change these parameters while they train. The plots show the last values; a trial may have had others when it reported its best value.";
  const { counts, trials } = experiment;
  const early = EARLY.filter((state) => counts[state] > 0);
  const count = early.reduce((sum, state) => sum + counts[state], 0);
  if (2 * count <= trials || shown.every(isFinished)) return null;
  const why =
    early.length === 1 && counts.stopped > 0
      ? "stopped early"
      : `not trained to the end (${early.map((state) => `${counts[state]} ${state}`).join(", ")})`;
  return `${count} of ${plural(trials, "trial")} ${count === 1 ? "was" : "were"} ${why}, so most values are from few iterations: trials that learn fast look good here, even if others would end better.`;
}

/** Return why the shares are only a hint; null if they are reliable. */
export function cautionOf(
  { items, trials, completed, stopped }: Importances,
  experiment: Pick<Experiment, "scheduler" | "resolved">,
): string | null {
  if (isPopulationBased(experiment)) {
    return "The scheduler changed values during training, but each trial counts with only one of its configurations here: see the lineage of the best trial.";
  }
  const others = Math.max(trials - completed - stopped, 0);
  if (2 * (stopped + others) > trials) {
    const why =
      others === 0
        ? "stopped early"
        : `not trained to the end: ${stopped > 0 ? `${stopped} stopped early, ` : ""}${others} failed or cancelled`;
    return `${stopped + others} of these ${trials} trials were ${why}. Their values are from less training than those of the others, so a parameter that only speeds up the beginning can seem important.`;
  }
  if (trials < PER_PARAMETER * items.length) {
    return `${trials} trials are few for ${plural(items.length, "parameter")}: a small share here does not mean that a parameter does not matter.`;
  }
  return null;
}

/** Say which of the trials were trained to their end, and how repeats count. */
export function sourceWords({ trials, completed, stopped, repeats }: Importances): string {
  const others = trials - completed - stopped;
  const kinds = [
    ...(completed > 0 ? [`${completed} trained to the end`] : []),
    ...(stopped > 0 ? [`${stopped} stopped early`] : []),
    ...(others > 0 ? [`${others} failed or cancelled`] : []),
  ];
  const of = completed === trials ? ", all trained to the end" : `: ${kinds.join(", ")}`;
  if (repeats === 0) return `${of}.`;
  return `${of}. ${repeats === 1 ? "1 repeat does" : `${repeats} repeats do`} not count separately: the mean of a trial and its repeats is one result.`;
}

export function Shares({
  found,
  caution,
  labels = {},
  chosen = false,
  ended = false,
}: {
  found: Importances;
  caution: string | null;
  labels?: Labels;
  /** True if filters leave out some trials. */
  chosen?: boolean;
  /** True if the experiment has ended, so that no more trials will. */
  ended?: boolean;
}) {
  const { items, metric, needed, trials } = found;
  if (items.length === 0) {
    return (
      <p className={classes.noShares}>
        {trials < needed && chosen
          ? `${trials} of the chosen trials ${trials === 1 ? "has" : "have"} ended with a result; ${needed} are needed.`
          : trials < needed && ended
            ? `Too few trials have ended with a result: ${trials}, and ${needed} are needed.`
            : trials < needed
              ? `Shown once ${needed} trials have ended with a result; ${trials} ${trials === 1 ? "has" : "have"} so far.`
              : "The results do not show any difference between parameters."}
      </p>
    );
  }
  return (
    <>
      <dl className={`${classes.shares} upAndDown`} tabIndex={0} aria-label={`Importance of parameters for ${metric}`}>
        {items.map(({ parameter, share }) => (
          <div key={parameter}>
            <dt title={paramName(parameter, labels)}>{paramName(parameter, labels)}</dt>
            <dd>
              <div>
                <i style={{ width: `${100 * share}%` }} aria-hidden />
              </div>
              <span>{share > 0 && share < 0.005 ? "< 1" : Math.round(100 * share)} %</span>
            </dd>
          </div>
        ))}
      </dl>
      {caution && (
        <p className={classes.caution}>
          <b>This is only a hint.</b> {caution}
        </p>
      )}
      <p className={classes.noShares}>
        PED-ANOVA over {trials} {chosen && "chosen "}trials that have ended with a result{sourceWords(found)}
      </p>
    </>
  );
}
