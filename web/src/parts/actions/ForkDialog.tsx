import { Anchor, Switch, TextInput } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate } from "react-router";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { NumberField } from "../common/NumberField";
import { useRequestKey } from "../common/useRequestKey";
import classes from "./actions.module.css";
import { FormDialog } from "./FormDialog";

/** The form that creates an experiment with the spec of this one, including its function, and with changes. */
export default function ForkDialog({ experiment, onClose }: { experiment: Experiment; onClose: () => void }) {
  const navigate = useNavigate();
  const [name, setName] = useState(`${experiment.name}-fork`);
  const [samples, setSamples] = useState<number | "">(experiment.num_samples ?? "");
  const [longest, setLongest] = useState<number | "">(experiment.max_t ?? "");
  const several = experiment.objectives.length > 1; // no search with several objectives can learn from earlier ones yet
  const [learn, setLearn] = useState(!several);
  const keyOf = useRequestKey();
  const changes = {
    name,
    ...(samples !== (experiment.num_samples ?? "") && { num_samples: samples === "" ? null : samples }),
    ...(longest !== (experiment.max_t ?? "") && { max_t: longest === "" ? null : longest }),
  };
  const send = useMutation({
    mutationFn: () => api.fork(experiment.id, { changes, learn }, keyOf([changes, learn])),
  });
  const open = (made: Experiment) => {
    onClose();
    void navigate(`/experiments/${made.id}`);
  };
  return (
    <FormDialog
      title="Fork this experiment"
      words={
        <>
          A new experiment starts with the spec and the training function of <b>{experiment.name}</b>. To change more
          than this,{" "}
          <Anchor component={Link} to={`/new?clone=${experiment.id}`} size="sm">
            clone it into the form
          </Anchor>
          .
        </>
      }
      verb="Start the fork"
      wrong="It could not be started"
      pending={send.isPending}
      error={send.error}
      disabled={name.trim() === ""}
      onSend={() => send.mutate(undefined, { onSuccess: open })}
      onClose={onClose}
    >
      <TextInput
        label="Name"
        value={name}
        onChange={(event) => setName(event.currentTarget.value)}
        required
        data-autofocus
      />
      <div className={classes.pair}>
        <NumberField
          label="Trials"
          description="empty: as many as the limits allow"
          min={1}
          allowDecimal={false}
          value={samples}
          onChange={setSamples}
        />
        <NumberField
          label="Longest trial"
          description={longestWords(experiment)}
          min={1}
          allowDecimal={false}
          value={longest}
          onChange={setLongest}
        />
      </div>
      <Switch
        label="Learn from these trials"
        description={several ? "not possible with several objectives yet" : undefined}
        disabled={several}
        checked={learn}
        onChange={(event) => setLearn(event.currentTarget.checked)}
      />
    </FormDialog>
  );
}

/** "max_t, in iterations; the scheduler ends trials at 27": the smaller of the two limits applies. */
function longestWords({ time_attr, scheduler }: Experiment): string {
  const own = scheduler["max_t"];
  const unit = time_attr === "training_iteration" ? "iterations" : time_attr;
  return `max_t, in ${unit}${typeof own === "number" ? `; the scheduler ends trials at ${own}` : ""}`;
}
