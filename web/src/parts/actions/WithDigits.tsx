import { Modal } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { api } from "../../api/client";
import { mayBeRounded } from "../../api/exact";
import type { Experiment, Params, Trial } from "../../api/types";
import { keys } from "../../live/keys";
import { ProblemBox } from "../common/Problem";

interface WithDigitsProps {
  experiment: Experiment;
  /** A trial with whose parameters the form begins. */
  trial?: Pick<Trial, "id" | "params">;
  /** The title of the dialog. */
  title: string;
  onClose: () => void;
  children: (exact: Experiment, params: Params) => ReactNode;
}

/**
 * Show a form for the experiment and the trial as they were when the form was opened. If whole numbers above 2^53 have lost digits,
 * read both again with all of them, since the form sends them back.
 */
export function WithDigits({ experiment, trial, title, onClose, children }: WithDigitsProps) {
  const [shown] = useState({ experiment, params: trial?.params ?? {} });
  const { space, labels, best } = shown.experiment;
  const rounded = mayBeRounded([space, labels, best?.params, shown.params]);
  const exact = useQuery({
    queryKey: [...keys.experiment(experiment.id), "exact", trial?.id],
    queryFn: async ({ signal }) => {
      const [exactExperiment, exactTrial] = await Promise.all([
        api.exactExperiment(experiment.id, signal),
        trial && api.exactTrial(trial.id, signal),
      ]);
      return { experiment: exactExperiment, params: exactTrial?.params ?? {} };
    },
    enabled: rounded,
    gcTime: 0,
    staleTime: Infinity,
  });
  const first = rounded ? exact.data : shown;
  if (first) return children(first.experiment, first.params);
  if (!exact.isError) return null;
  return (
    <Modal opened onClose={onClose} title={<b>{title}</b>} centered>
      <ProblemBox error={exact.error} what="experiment" retry={() => void exact.refetch()} />
    </Modal>
  );
}
