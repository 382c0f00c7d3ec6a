import { TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { plural } from "../../format";
import { keys } from "../../live/keys";
import { FormDialog } from "./FormDialog";

/** Deletes an experiment for good, once its name has been typed. */
export default function DeleteDialog({ experiment, onClose }: { experiment: Experiment; onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [typed, setTyped] = useState("");
  const send = useMutation({
    mutationFn: () => api.delete(experiment.id),
    onSuccess: async () => {
      // The page may have noticed the deletion before the answer came, and then this form is gone.
      if (window.location.pathname.includes(`/experiments/${experiment.id}`)) await navigate("/experiments");
      client.removeQueries({ queryKey: keys.experiment(experiment.id) });
      void client.invalidateQueries({ queryKey: keys.experiments });
    },
  });
  return (
    <FormDialog
      title="Delete this experiment permanently?"
      words={
        <>
          {experiment.trials === 1 ? "Its only trial is" : `Its ${plural(experiment.trials, "trial")} are`} deleted,
          with all results, checkpoints (also pinned ones), logs and decisions. This cannot be undone. To hide it from
          the list instead, archive it.
        </>
      }
      verb="Delete permanently"
      wrong="It could not be deleted"
      final
      pending={send.isPending}
      error={send.error}
      disabled={typed.trim() !== experiment.name.trim()}
      onSend={() => send.mutate()}
      onClose={onClose}
    >
      <TextInput
        label="Type its name to confirm"
        placeholder={experiment.name}
        value={typed}
        autoComplete="off"
        onChange={(event) => setTyped(event.currentTarget.value)}
        data-autofocus
      />
    </FormDialog>
  );
}
