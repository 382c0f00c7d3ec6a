import { Button } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import { api, type TrialAction } from "../../api/client";
import type { Experiment, Trial } from "../../api/types";
import { keys } from "../../live/keys";
import { Confirm } from "./Confirm";
import type { Words } from "./words";

const ForkTrialDialog = lazy(() => import("./ForkTrialDialog"));

const WORDS: Record<TrialAction, Words & { short: string; asked: string }> = {
  stop: {
    question: "Stop this trial?",
    verb: "Stop the trial",
    short: "Stop",
    asked: "Stopping…",
    keep: "Keep it running",
    final: true,
    effect: "It ends at its next report and keeps its results and checkpoints; the experiment continues without it.",
  },
  kill: {
    question: "Kill this trial at once?",
    verb: "Kill the trial",
    short: "Kill",
    asked: "Killing…",
    keep: "Keep it running",
    final: true,
    effect:
      "Its processes end now, without a last report or checkpoint: use it if stopping takes too long. It keeps its results and checkpoints so far; the experiment continues without it.",
  },
  retry: {
    question: "Retry this trial?",
    verb: "Retry the trial",
    short: "Retry",
    asked: "Retry requested",
    keep: "Leave it",
    final: false,
    effect:
      "A new trial with its parameters starts from its newest checkpoint, or from the beginning if it has none. An experiment that has ended runs again for it.",
  },
};

const ORDER: readonly TrialAction[] = ["stop", "kill", "retry"];

interface TrialActionsProps {
  trial: Pick<Trial, "id" | "number" | "state" | "checkpoint" | "params" | "actions">;
  experiment: Pick<Experiment, "id" | "state" | "space" | "labels">;
}

/** Everything that can be done with a trial, each after a question or in a form. */
export function TrialActions({ trial, experiment }: TrialActionsProps) {
  const client = useQueryClient();
  const [asked, setAsked] = useState<TrialAction | null>(null);
  const [forking, setForking] = useState(false);
  const act = useMutation({
    mutationFn: (action: TrialAction) => api.actOnTrial(trial.id, action),
    onSuccess: () => {
      setAsked(null);
      void client.invalidateQueries({ queryKey: keys.trial(trial.id) });
    },
  });
  const allowed = ORDER.filter((action) => trial.actions.includes(action));
  const done = act.isSuccess ? act.variables : null;
  return (
    <>
      {allowed.map((action) => (
        <Button
          key={action}
          size="compact-xs"
          variant="default"
          disabled={done === action}
          onClick={() => setAsked(action)}
        >
          {done === action ? WORDS[action].asked : WORDS[action].short}
        </Button>
      ))}
      {trial.actions.includes("fork") && (
        <Button size="compact-xs" variant="default" onClick={() => setForking(true)}>
          Fork
        </Button>
      )}
      <Confirm
        asked={asked && { ...WORDS[asked], subject: `Trial ${trial.number}` }}
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
