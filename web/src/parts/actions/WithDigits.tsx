import { Modal } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { api } from "../../api/client";
import { mayBeRounded } from "../../api/exact";
import type { Experiment } from "../../api/types";
import { keys } from "../../live/keys";
import { ProblemBox } from "../common/Problem";

interface WithDigitsProps {
  experiment: Experiment;
  /** The title of the dialog. */
  title: string;
  onClose: () => void;
  children: (exact: Experiment) => ReactNode;
}

/**
 * Show a form for the experiment as it was when the form was opened. If whole numbers above 2^53 have lost digits, read it again with
 * all of them, since the form sends them back.
 */
export function WithDigits({ experiment, title, onClose, children }: WithDigitsProps) {
  const [shown] = useState(experiment);
  const rounded = mayBeRounded([shown.space, shown.labels, shown.best?.params]);
  const exact = useQuery({
    queryKey: [...keys.experiment(shown.id), "exact"],
    queryFn: ({ signal }) => api.exactExperiment(shown.id, signal),
    enabled: rounded,
    gcTime: 0,
    staleTime: Infinity,
  });
  const first = rounded ? exact.data : shown;
  if (first) return children(first);
  if (!exact.isError) return null;
  return (
    <Modal opened onClose={onClose} title={<b>{title}</b>} centered>
      <ProblemBox error={exact.error} what="experiment" retry={() => void exact.refetch()} />
    </Modal>
  );
}
