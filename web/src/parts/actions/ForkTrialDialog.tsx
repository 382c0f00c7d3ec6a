import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client";
import type { Experiment, Trial } from "../../api/types";
import { bytes } from "../../format";
import { keys } from "../../live/keys";
import { experimentEnded } from "../../live/states";
import { Select } from "../common/Select";
import { useRequestKey } from "../common/useRequestKey";
import { FormDialog } from "./FormDialog";
import { ParamFields } from "./ParamFields";
import { fieldsOf, filled, textsOf } from "./values";
import { WithDigits } from "./WithDigits";
import { own } from "../../own";

interface ForkTrialDialogProps {
  trial: Pick<Trial, "id" | "number" | "params" | "checkpoint">;
  experiment: Experiment;
  /** The checkpoint to begin with; null for the newest. */
  checkpoint: string | null;
  onClose: () => void;
}

/** A new trial that starts from a checkpoint of this one, with some of its parameters changed. */
export default function ForkTrialDialog(props: ForkTrialDialogProps) {
  return (
    <WithDigits {...props} title={titleOf(props.trial)}>
      {(experiment, params) => <Form {...props} experiment={experiment} trial={{ ...props.trial, params }} />}
    </WithDigits>
  );
}

function titleOf({ number }: Pick<Trial, "number">): string {
  return `Fork trial ${number}`;
}

function Form({ trial, experiment, checkpoint, onClose }: ForkTrialDialogProps) {
  const client = useQueryClient();
  const list = useQuery({
    queryKey: keys.trialCheckpoints(trial.id),
    queryFn: ({ signal }) => api.checkpoints(experiment.id, trial.number, signal),
  });
  const ready = list.data?.filter((one) => one.state === "ready") ?? [];
  const [from, setFrom] = useState(checkpoint);
  const keyOf = useRequestKey();
  const names = Object.keys(trial.params);
  const [first] = useState(() => textsOf(experiment, trial.params, names));
  const [texts, setTexts] = useState(first);
  const fields = fieldsOf(experiment, ({ name }) => own(texts, name) ?? "", names);
  const changed = fields.filter((field) => (own(texts, field.name) ?? "") !== (own(first, field.name) ?? ""));
  const send = useMutation({
    mutationFn: (texts: Readonly<Record<string, string>>) => {
      const body = { checkpoint_id: from, params: filled(changed, texts) };
      return api.forkTrial(trial.id, body, keyOf(body));
    },
    onSuccess: () => void client.invalidateQueries({ queryKey: keys.experiment(experiment.id) }),
  });
  const newest = trial.checkpoint ? `the newest, from iteration ${trial.checkpoint.step}` : "the newest";
  return (
    <FormDialog
      title={titleOf(trial)}
      words={
        <>
          A new trial starts with the weights of trial {trial.number} and the parameters below.
          {experimentEnded(experiment.state) && " The experiment has ended. It will run again to train the new trial."}
        </>
      }
      verb="Start the new trial"
      wrong="It could not be started"
      size="lg"
      pending={send.isPending}
      error={send.error}
      onSend={() => send.mutate(texts, { onSuccess: onClose })}
      onClose={onClose}
    >
      <Select
        label="Checkpoint"
        data-autofocus
        allowDeselect={false}
        value={from ?? ""}
        onChange={(value) => setFrom(value || null)}
        data={[
          { value: "", label: newest },
          ...ready.map((one) => ({
            value: one.id,
            label: `iteration ${one.step}, ${bytes(one.bytes)}${one.pinned ? ", pinned" : ""}`,
          })),
        ]}
      />
      <ParamFields
        fields={fields}
        labels={experiment.labels}
        texts={texts}
        placeholder="as before"
        error={send.error}
        sent={send.variables}
        onChange={setTexts}
      />
    </FormDialog>
  );
}
