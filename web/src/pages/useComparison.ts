import { useMutation, type UseMutationResult } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { api } from "../api/client";
import type { Trial } from "../api/types";

type Known = Pick<Trial, "number" | "id">;

/**
 * Open the page that compares trials of an experiment, which `mutate` takes by their numbers. Those that are not among the known
 * ones are looked up first.
 */
export function useComparison(
  experiment: string,
  ...known: (readonly Known[])[]
): UseMutationResult<void, Error, readonly number[]> {
  const navigate = useNavigate();
  return useMutation({
    // What is picked is an argument: on a busy machine, a function of an earlier render may still be the one that is called.
    mutationFn: async (picked: readonly number[]) => {
      const ids = new Map(known.flat().map(({ number, id }) => [number, id]));
      const missing = picked.filter((number) => !ids.has(number));
      if (missing.length > 0) {
        const where = [`number?=${JSON.stringify(missing)}`];
        const { items } = await api.trials(experiment, { sort: "number", where, page_size: missing.length });
        for (const { number, id } of items) ids.set(number, id);
      }
      await navigate(`/compare?trials=${picked.flatMap((number) => ids.get(number) ?? []).join(",")}`);
    },
  });
}
