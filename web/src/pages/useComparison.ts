import { useMutation, type UseMutationResult } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { api } from "../api/client";
import type { Trial } from "../api/types";

type Known = Pick<Trial, "number" | "id">;

/** Open the page that compares the picked trials of an experiment. Trials that are not among the known ones are looked up first. */
export function useComparison(
  experiment: string,
  picked: readonly number[],
  ...known: (readonly Known[])[]
): UseMutationResult<void, Error, void> {
  const navigate = useNavigate();
  return useMutation({
    mutationFn: async () => {
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
