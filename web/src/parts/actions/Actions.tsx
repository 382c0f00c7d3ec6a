import { Button, Group, Menu } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Suspense, useState, type ReactNode } from "react";
import { useNavigate } from "react-router";
import { api, type Action } from "../../api/client";
import type { Experiment } from "../../api/types";
import { withExperiment } from "../../live/changes";
import { keys } from "../../live/keys";
import { lazily } from "../common/lazily";
import { useMayChange } from "../common/useSession";
import classes from "./actions.module.css";
import { Confirm, type Question } from "./Confirm";
import { ACTIONS, lateWords, WORDS } from "./words";

const ContinueDialog = lazily(() => import("./ContinueDialog"));
const DeleteDialog = lazily(() => import("./DeleteDialog"));
const EditDialog = lazily(() => import("./EditDialog"));
const EnqueueDialog = lazily(() => import("./EnqueueDialog"));
const ForkDialog = lazily(() => import("./ForkDialog"));

type Form = "continue" | "edit" | "enqueue" | "fork" | "delete";

const about = (action: Action) => WORDS[action].about;

/** The actions that have a button of their own. The others are in the menu, each with a description. */
const BUTTONS = ACTIONS.filter((action) => !about(action));
const MENU = ACTIONS.filter(about);

/** The actions on an experiment. Each asks a question first, or opens a form. A viewer has none. */
export function Actions({ experiment }: { experiment: Experiment }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asked, setAsked] = useState<Action | null>(null);
  const [form, setForm] = useState<Form | null>(null);
  const [said, setSaid] = useState<string | null>(null);
  const act = useMutation({
    mutationFn: (action: Action) => api.act(experiment.id, action),
    onSuccess: (answer, action) => {
      client.setQueryData<Experiment>(keys.experiment(experiment.id), (shown) => withExperiment(shown, answer));
      setAsked((now) => (now === action ? null : now)); // a late answer closes no other question
    },
  });
  const close = () => {
    setAsked(null);
    act.reset();
  };
  if (!useMayChange()) return null;
  const allowed = new Set<string>(experiment.actions);
  const onClose = () => setForm(null);
  const dialog = { experiment, onClose, onDone: setSaid };
  return (
    <Group gap={6}>
      {BUTTONS.filter((action) => allowed.has(action)).map((action) => (
        <Button
          key={action}
          size="compact-sm"
          variant="default"
          {...(WORDS[action].final ? { className: classes.final } : {})}
          onClick={() => setAsked(action)}
        >
          {WORDS[action].verb}
        </Button>
      ))}
      {allowed.has("continue") && (
        <Button
          size="compact-sm"
          variant="default"
          title="Add trials to this search; it uses what has been learned so far"
          onClick={() => setForm("continue")}
        >
          Continue
        </Button>
      )}
      <Menu position="bottom-end" width={320} shadow="md">
        <Menu.Target>
          <Button size="compact-sm" variant="default" aria-label="More actions">
            More
          </Button>
        </Menu.Target>
        <Menu.Dropdown className={classes.menu}>
          {allowed.has("enqueue") && !allowed.has("continue") && (
            <Item name="Add trials" about="Start more trials than num_samples" onClick={() => setForm("continue")} />
          )}
          {allowed.has("enqueue") && (
            <Item
              name="Try a configuration"
              about="Start a trial with parameters that you choose"
              onClick={() => setForm("enqueue")}
            />
          )}
          {allowed.has("edit") && (
            <Item
              name="Edit"
              about="Name, notes, labels, priority, number of trials, limits and search space"
              onClick={() => setForm("edit")}
            />
          )}
          <Item
            name="Fork"
            about="Start a new experiment with this spec and changes; it can learn from these results"
            onClick={() => setForm("fork")}
          />
          <Item
            name="Clone"
            about="Open this spec in the form for a new experiment"
            onClick={() => void navigate(`/new?clone=${experiment.id}`)}
          />
          {MENU.filter((action) => allowed.has(action)).map((action) => (
            <Item
              key={action}
              name={WORDS[action].verb}
              about={about(action)!}
              final={WORDS[action].final}
              onClick={() => setAsked(action)}
            />
          ))}
          {allowed.has("delete") && (
            <Item
              name="Delete"
              about="Delete it permanently, with its trials, checkpoints and logs"
              final
              onClick={() => setForm("delete")}
            />
          )}
        </Menu.Dropdown>
      </Menu>
      {said && (
        <span className={classes.said} role="status">
          {said}
        </span>
      )}
      <Confirm
        asked={
          asked && {
            ...WORDS[asked],
            subject: experiment.name,
            late: allowed.has(asked) ? undefined : lateWords(asked, experiment.state, experiment.archived_at !== null),
          }
        }
        pending={act.isPending}
        error={act.error}
        onConfirm={() => asked && act.mutate(asked)}
        onClose={close}
      />
      <Suspense>
        {form === "continue" && <ContinueDialog {...dialog} />}
        {form === "edit" && <EditDialog {...dialog} />}
        {form === "enqueue" && <EnqueueDialog {...dialog} />}
        {form === "fork" && <ForkDialog experiment={experiment} onClose={onClose} />}
        {form === "delete" && <DeleteDialog experiment={experiment} onClose={onClose} />}
      </Suspense>
    </Group>
  );
}

interface ItemProps {
  name: string;
  about: string;
  final?: boolean;
  onClick: () => void;
}

function Item({ name, about, final, onClick }: ItemProps) {
  return (
    <Menu.Item onClick={onClick} className={classes.item} data-final={final}>
      <b>{name}</b>
      <span>{about}</span>
    </Menu.Item>
  );
}

const BULK: readonly Action[] = [...BUTTONS, "archive", "unarchive"];

interface BulkActionsProps {
  experiments: readonly Pick<Experiment, "id" | "name" | "actions">[];
  className?: string | undefined;
  /** The buttons beside those of the actions. */
  children?: ReactNode;
}

/**
 * Change those of several experiments whose state allows it, after a question. Say in words what failed. A viewer has no buttons for
 * that. The question stays if somebody else was faster, even if that has removed all of them from the list.
 */
export function BulkActions({ experiments, className, children }: BulkActionsProps) {
  const client = useQueryClient();
  const [question, setQuestion] = useState<{ action: Action; names: readonly string[] } | null>(null);
  const able = (action: Action) => experiments.filter((one) => one.actions.includes(action));
  const act = useMutation({
    mutationFn: async (action: Action) => {
      const chosen = able(action);
      const ended = await Promise.allSettled(chosen.map((one) => api.act(one.id, action)));
      await client.invalidateQueries({ queryKey: keys.experiments });
      const failed = ended.flatMap((one, i) =>
        one.status === "rejected"
          ? [{ name: chosen[i]!.name, why: one.reason instanceof Error ? one.reason.message : "" }]
          : [],
      );
      if (failed.length === 0) return;
      setQuestion((now) => now && { ...now, names: failed.map(({ name }) => name) });
      throw new Error(failed.map(({ name, why }) => `${name}: ${why}`).join("; "));
    },
    // A late answer closes no other question.
    onSuccess: (_, action) => setQuestion((now) => (now?.action === action ? null : now)),
  });
  const mayChange = useMayChange();
  return (
    <>
      {experiments.length > 0 && (
        <div className={className} role="group" aria-label="Selected experiments">
          <b>{experiments.length} selected</b>
          {mayChange &&
            BULK.filter((action) => action !== "unarchive" || able(action).length > 0).map((action) => (
              <Button
                key={action}
                size="compact-sm"
                variant="default"
                {...(WORDS[action].final && able(action).length > 0 ? { c: "red" } : {})}
                disabled={able(action).length === 0}
                onClick={() => setQuestion({ action, names: able(action).map((one) => one.name) })}
              >
                {WORDS[action].verb} {able(action).length}
              </Button>
            ))}
          {children}
        </div>
      )}
      {mayChange && (
        <Confirm
          asked={question && bulkQuestion(question.action, question.names, able(question.action))}
          pending={act.isPending}
          error={act.error}
          onConfirm={() => question && act.mutate(question.action)}
          onClose={() => {
            setQuestion(null);
            act.reset();
          }}
        />
      )}
    </>
  );
}

/** The question before several experiments are changed, of which there were `names` when it was asked. */
function bulkQuestion(action: Action, names: readonly string[], able: readonly Pick<Experiment, "name">[]): Question {
  const left = able.length > 0 ? able.map((one) => one.name) : names;
  const many = left.length > 1;
  const words = `${WORDS[action].verb} ${left.length} ${many ? "experiments" : "experiment"}`;
  return {
    ...WORDS[action],
    question: `${words}?`,
    sure: WORDS[action].final ? words : WORDS[action].verb,
    subject: left.join(", "),
    late:
      able.length > 0 ? undefined : `This can no longer be done. ${many ? "They have" : "It has"} changed meanwhile.`,
  };
}
