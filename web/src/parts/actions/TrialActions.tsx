import { Button } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Suspense, useState } from "react";
import { api, type TrialAction } from "../../api/client";
import type { Experiment, Trial } from "../../api/types";
import { keys } from "../../live/keys";
import { lazily } from "../common/lazily";
import { useRequestKey } from "../common/useRequestKey";
import { useMayChange } from "../common/useSession";
import { Confirm } from "./Confirm";
import { lateWords, TRIAL_ACTIONS, TRIAL_WORDS } from "./words";

const ForkTrialDialog = lazily(() => import("./ForkTrialDialog"));

interface TrialActionsProps {
  trial: Pick<Trial, "id" | "number" | "state" | "checkpoint" | "params" | "actions">;
  experiment: Experiment;
}

/** The actions on a trial. Each asks a question first, or opens a form. A viewer has none. */
export function TrialActions({ trial, experiment }: TrialActionsProps) {
  const client = useQueryClient();
  const [asked, setAsked] = useState<TrialAction | null>(null);
  const [forking, setForking] = useState(false);
  const [requested, setRequested] = useState<TrialAction | null>(null);
  // A request has been carried out once the state changes. The trial may allow the same action again later, as after a failed retry.
  const [before, setBefore] = useState(trial.state);
  if (before !== trial.state) {
    setBefore(trial.state);
    setRequested(null);
  }
  const [answered, setAnswered] = useState(0); // a request that follows an answered one is a new one
  const keyOf = useRequestKey();
  const act = useMutation({
    mutationFn: (action: TrialAction) => api.actOnTrial(trial.id, action, keyOf([trial.id, action, answered])),
    onSuccess: (_, action) => {
      setAsked((now) => (now === action ? null : now)); // a late answer closes no other question
      setRequested(action);
      setAnswered((count) => count + 1);
      void client.invalidateQueries({ queryKey: keys.trial(trial.id) });
      void client.invalidateQueries({ queryKey: keys.experiment(experiment.id), exact: true });
    },
  });
  if (!useMayChange()) return null;
  const allowed = TRIAL_ACTIONS.filter((action) => trial.actions.includes(action));
  return (
    <>
      {allowed.map((action) => (
        <Button
          key={action}
          size="compact-xs"
          variant="default"
          disabled={requested === action}
          onClick={() => setAsked(action)}
        >
          {requested === action ? `${TRIAL_WORDS[action].verb} requested` : TRIAL_WORDS[action].verb}
        </Button>
      ))}
      {trial.actions.includes("fork") && (
        <Button size="compact-xs" variant="default" onClick={() => setForking(true)}>
          Fork
        </Button>
      )}
      <Confirm
        asked={
          asked && {
            ...TRIAL_WORDS[asked],
            subject: `Trial ${trial.number}`,
            late: allowed.includes(asked) ? undefined : lateWords(asked, trial.state),
          }
        }
        pending={act.isPending}
        error={act.error}
        onConfirm={() => asked && act.mutate(asked)}
        onClose={() => {
          setAsked(null);
          if (act.isError) act.reset();
        }}
      />
      <Suspense>
        {forking && (
          <ForkTrialDialog trial={trial} experiment={experiment} checkpoint={null} onClose={() => setForking(false)} />
        )}
      </Suspense>
    </>
  );
}
