import { Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { api } from "../api/client";
import type { Experiment, Importances } from "../api/types";
import { experimentEnded, keys } from "../live/useExperiment";
import { ProblemBox } from "./Problem";
import classes from "./parts.module.css";

const REFRESH_MS = 20_000;

/** How much each parameter mattered for the objective, as far as the trials that have ended can tell. */
export function Importance({ experiment }: { experiment: Experiment }) {
  const query = useQuery({
    queryKey: keys.importance(experiment.id),
    queryFn: ({ signal }) => api.importance(experiment.id, signal),
    refetchInterval: experimentEnded(experiment.state) ? false : REFRESH_MS,
  });
  if (query.isError && !query.data) return <ProblemBox error={query.error} what="importance of parameters" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={60} />;
  return <Shares found={query.data} changing={experiment.scheduler["type"] === "pbt"} />;
}

/** changing: whether trials were given other values on the way, so that a result is not that of the newest ones alone. */
export function Shares({ found: { items, metric, needed, trials }, changing = false }: { found: Importances; changing?: boolean }) {
  if (items.length === 0) {
    return <p className={classes.noShares}>{trials < needed ? `Known once ${needed} trials have ended with a result; ${trials} ${trials === 1 ? "has" : "have"}.` : "Nothing can be told apart."}</p>;
  }
  const most = Math.max(...items.map((item) => item.share));
  return (
    <>
      <dl className={classes.shares} aria-label={`Importance of parameters for ${metric}`}>
        {items.map(({ parameter, share }) => (
          <div key={parameter}>
            <dt title={parameter}>{parameter}</dt>
            <dd>
              <div><i style={{ width: `${most > 0 ? (100 * share) / most : 0}%` }} aria-hidden /></div>
              <span>{Math.round(100 * share)} %</span>
            </dd>
          </div>
        ))}
      </dl>
      <p className={classes.noShares}>
        PED-ANOVA over {trials} trials that have ended
        {changing && ". PBT changed values on the way, and the newest are held to account for all: see the lineage of the best trial."}
      </p>
    </>
  );
}
