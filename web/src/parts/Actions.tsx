import { Button, Group, Modal, Text } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, type Action } from "../api/client";
import type { Experiment, Trial } from "../api/types";
import { hasEnded } from "../live/states";
import { keys } from "../live/useExperiment";

const WORDS: Record<Action, { verb: string; question: string; effect: string; keep: string }> = {
  pause: {
    verb: "Pause",
    question: "Pause this experiment?",
    keep: "Keep it running",
    effect:
      "Every running trial leaves at its next report, keeps its newest checkpoint and gives its resources back. You can resume it at any time.",
  },
  resume: {
    verb: "Resume",
    question: "Resume this experiment?",
    keep: "Leave it paused",
    effect: "Its trials go on from their newest checkpoints as resources allow.",
  },
  cancel: {
    verb: "Cancel",
    question: "Cancel this experiment for good?",
    keep: "Keep it",
    effect:
      "Running trials end at their next report and no new ones start. Results and checkpoints so far stay. This cannot be undone.",
  },
  kill: {
    verb: "Kill",
    question: "Kill this experiment at once?",
    keep: "Keep it",
    effect:
      "Its processes end now, without a last report or checkpoint. Results and checkpoints so far stay. This cannot be undone.",
  },
};

const FINAL: ReadonlySet<Action> = new Set(["cancel", "kill"]);

/** Return true if there is a button for the verb on an experiment's page. */
function isShown(action: Experiment["actions"][number]): action is Action {
  return action in WORDS;
}

interface Question {
  question: string;
  subject: string;
  effect: string;
  verb: string;
  keep: string;
  final: boolean;
}

interface ConfirmProps {
  asked: Question | null;
  pending: boolean;
  error: Error | null;
  onConfirm: () => void;
  onClose: () => void;
}

function Confirm({ asked, pending, error, onConfirm, onClose }: ConfirmProps) {
  return (
    <Modal opened={asked !== null} onClose={onClose} title={<b>{asked?.question}</b>} centered>
      {asked && (
        <>
          <Text size="sm" mb="md">
            <b>{asked.subject}</b>: {asked.effect}
          </Text>
          {error && (
            <Text size="sm" c="red" mb="sm" role="alert">
              {error.message}
            </Text>
          )}
          <Group justify="flex-end" gap="xs">
            <Button size="sm" variant="default" onClick={onClose}>
              {asked.keep}
            </Button>
            <Button
              size="sm"
              {...(asked.final ? { color: "red" } : {})}
              loading={pending}
              onClick={onConfirm}
              data-autofocus
            >
              {asked.verb}
            </Button>
          </Group>
        </>
      )}
    </Modal>
  );
}

/** Pause, resume and cancel, each after a question. */
export function Actions({ experiment }: { experiment: Pick<Experiment, "id" | "name" | "actions"> }) {
  const client = useQueryClient();
  const [asked, setAsked] = useState<Action | null>(null);
  const act = useMutation({
    mutationFn: (action: Action) => api.act(experiment.id, action),
    onSuccess: (answer) => {
      client.setQueryData<Experiment>(keys.experiment(experiment.id), answer);
      setAsked(null);
    },
  });
  const close = () => {
    setAsked(null);
    act.reset();
  };
  return (
    <Group gap={6}>
      {experiment.actions.filter(isShown).map((action) => (
        <Button
          key={action}
          size="compact-sm"
          variant="default"
          {...(FINAL.has(action) ? { c: "red" } : {})}
          onClick={() => setAsked(action)}
        >
          {WORDS[action].verb}
        </Button>
      ))}
      <Confirm
        asked={asked && { ...WORDS[asked], subject: experiment.name, final: FINAL.has(asked) }}
        pending={act.isPending}
        error={act.error}
        onConfirm={() => asked && act.mutate(asked)}
        onClose={close}
      />
    </Group>
  );
}

const STOP = {
  question: "Stop this trial?",
  verb: "Stop the trial",
  keep: "Let it run",
  final: true,
  effect: "It ends at its next report and keeps its results and checkpoints; the experiment goes on without it.",
};

/** Ends one trial early, after a question. Once asked for, it says so until the trial has ended. */
export function StopTrial({ trial }: { trial: Pick<Trial, "id" | "number" | "state"> }) {
  const [asked, setAsked] = useState(false);
  const stop = useMutation({ mutationFn: () => api.stopTrial(trial.id), onSuccess: () => setAsked(false) });
  if (hasEnded(trial.state)) return null;
  return (
    <>
      <Button size="compact-xs" variant="default" disabled={stop.isSuccess} onClick={() => setAsked(true)}>
        {stop.isSuccess ? "Stopping…" : "Stop"}
      </Button>
      <Confirm
        asked={asked ? { ...STOP, subject: `Trial ${trial.number}` } : null}
        pending={stop.isPending}
        error={stop.error}
        onConfirm={() => stop.mutate()}
        onClose={() => setAsked(false)}
      />
    </>
  );
}

const BULK: readonly Action[] = ["pause", "resume", "cancel"];

/** Pause, resume or cancel several experiments, each that its state allows, after a question. What fails is said in words. */
export function BulkActions({ experiments }: { experiments: readonly Pick<Experiment, "id" | "name" | "actions">[] }) {
  const client = useQueryClient();
  const [asked, setAsked] = useState<Action | null>(null);
  const able = (action: Action) => experiments.filter((one) => one.actions.includes(action));
  const act = useMutation({
    mutationFn: async (action: Action) => {
      const chosen = able(action);
      const ended = await Promise.allSettled(chosen.map((one) => api.act(one.id, action)));
      await client.invalidateQueries({ queryKey: keys.experiments });
      const failed = ended.flatMap((one, i) =>
        one.status === "rejected"
          ? [`${chosen[i]!.name}: ${one.reason instanceof Error ? one.reason.message : ""}`]
          : [],
      );
      if (failed.length > 0) throw new Error(failed.join("; "));
    },
    onSuccess: () => setAsked(null),
  });
  const count = asked ? able(asked).length : 0;
  return (
    <>
      {BULK.map((action) => (
        <Button
          key={action}
          size="compact-sm"
          variant="default"
          {...(action === "cancel" && able(action).length > 0 ? { c: "red" } : {})}
          disabled={able(action).length === 0}
          onClick={() => setAsked(action)}
        >
          {WORDS[action].verb} {able(action).length}
        </Button>
      ))}
      <Confirm
        asked={
          asked && {
            ...WORDS[asked],
            question: `${WORDS[asked].verb} ${count} ${count === 1 ? "experiment" : "experiments"}?`,
            subject: able(asked)
              .map((one) => one.name)
              .join(", "),
            final: FINAL.has(asked),
          }
        }
        pending={act.isPending}
        error={act.error}
        onConfirm={() => asked && act.mutate(asked)}
        onClose={() => {
          setAsked(null);
          act.reset();
        }}
      />
    </>
  );
}
