import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { plural } from "../../format";
import { withExperiment } from "../../live/changes";
import { keys } from "../../live/keys";
import { experimentEnded } from "../../live/states";
import { NumberField } from "../common/NumberField";
import { useRequestKey } from "../common/useRequestKey";
import { FormDialog, type DialogProps } from "./FormDialog";

/** More trials, for an experiment that runs or that has ended. */
export default function ContinueDialog({ experiment, onClose, onDone }: DialogProps) {
  const client = useQueryClient();
  const ended = experimentEnded(experiment.state);
  const missing = Math.max(0, (experiment.num_samples ?? 0) - experiment.trials);
  const [more, setMore] = useState<number | "">(missing > 0 ? "" : 10);
  const keyOf = useRequestKey();
  const send = useMutation({
    mutationFn: () => api.continue(experiment.id, more === "" ? null : more, keyOf(more)),
    onSuccess: (answer) => {
      client.setQueryData<Experiment>(keys.experiment(experiment.id), (shown) => withExperiment(shown, answer));
      onDone(more === "" ? "Continuation requested." : `Requested ${more} more ${more === 1 ? "trial" : "trials"}.`);
    },
  });
  return (
    <FormDialog
      title={ended ? "Continue this experiment" : "Add trials"}
      words={
        <>
          <b>{experiment.name}</b>
          {ended ? " runs again, and its search continues from its results." : " continues and starts more trials."}
          {missing > 0 &&
            ` ${missing} of its ${plural(experiment.num_samples!, "trial")} ${missing === 1 ? "has" : "have"} not been started yet.`}
        </>
      }
      verb={ended ? "Continue" : "Add them"}
      wrong="It could not be continued"
      pending={send.isPending}
      error={send.error}
      disabled={more === "" && !ended}
      onSend={() => send.mutate(undefined, { onSuccess: onClose })}
      onClose={onClose}
    >
      <NumberField
        label="Trials to add"
        description={ended ? "empty: add none, and only run the remaining trials" : "in addition to num_samples"}
        min={1}
        max={1_000_000}
        allowDecimal={false}
        value={more}
        onChange={setMore}
        data-autofocus
      />
    </FormDialog>
  );
}
