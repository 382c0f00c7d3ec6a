import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api } from "../api/client";
import type { Experiment } from "../api/types";
import { keys } from "./keys";
import { experimentEnded } from "./states";

const REFRESH_MS = 5000;

/**
 * Read how the Pareto front of several objectives grew: the hypervolume over time, and how many trials are on the front. With one
 * objective, nothing is read. `refresh`: read it every few seconds while trials report, instead of only when one has ended.
 */
export function useHypervolume(
  { id, objectives, state, counts }: Pick<Experiment, "id" | "objectives" | "state" | "counts">,
  refresh = false,
) {
  const ended = counts.completed + counts.stopped + counts.failed + counts.cancelled;
  const { data } = useQuery({
    queryKey: [...keys.experiment(id), "hypervolume", ended, state],
    queryFn: ({ signal }) => api.hypervolume(id, signal),
    enabled: objectives.length > 1,
    staleTime: Infinity,
    refetchInterval: refresh && !experimentEnded(state) ? REFRESH_MS : false,
    placeholderData: keepPreviousData,
  });
  return data;
}
