import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ApiError } from "../../api/client";
import type { Experiment } from "../../api/types";
import { withExperiment } from "../../live/changes";
import { keys } from "../../live/keys";
import { experimentEnded } from "../../live/states";
import { useRequestKey } from "../common/useRequestKey";
import { FormDialog, type DialogProps } from "./FormDialog";
import { ParamFields } from "./ParamFields";
import { fieldsOf, filled, textsOf } from "./values";
import { WithDigits } from "./WithDigits";
import { own } from "../../own";

const TITLE = "Try a configuration";

/** One more trial, with parameters that a person chooses. It begins with those of the best trial. */
export default function EnqueueDialog(props: DialogProps) {
  return (
    <WithDigits {...props} title={TITLE}>
      {(experiment) => <Form {...props} experiment={experiment} />}
    </WithDigits>
  );
}

function Form({ experiment, onClose, onDone }: DialogProps) {
  const client = useQueryClient();
  const best = experiment.best?.params;
  const [texts, setTexts] = useState(() => textsOf(experiment, best ?? {}));
  const fields = fieldsOf(experiment, ({ name }) => own(texts, name) ?? "");
  const keyOf = useRequestKey();
  const send = useMutation({
    mutationFn: (texts: Readonly<Record<string, string>>) => {
      const configuration = filled(fields, texts);
      return api.enqueue(experiment.id, [configuration], keyOf(configuration));
    },
    onSuccess: (answer) => {
      client.setQueryData<Experiment>(keys.experiment(experiment.id), (shown) => withExperiment(shown, answer));
      onDone("Requested one more trial.");
    },
  });
  return (
    <FormDialog
      title={TITLE}
      words={
        <>
          It becomes the next trial of <b>{experiment.name}</b>, in addition to num_samples.
          {experimentEnded(experiment.state) && " The experiment has ended. It will run again to train the new trial."}
          {best && " The fields contain the best configuration so far."}
        </>
      }
      verb="Try it"
      wrong={
        send.error instanceof ApiError && send.error.refused
          ? "It does not fit the search space"
          : "It could not be requested"
      }
      size="lg"
      pending={send.isPending}
      error={send.error}
      onSend={() => send.mutate(texts, { onSuccess: onClose })}
      onClose={onClose}
    >
      <ParamFields
        fields={fields}
        labels={experiment.labels}
        texts={texts}
        placeholder="drawn at random"
        error={send.error}
        sent={send.variables}
        first
        onChange={setTexts}
      />
    </FormDialog>
  );
}
