import { Autocomplete, Textarea, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api, ApiError } from "../../api/client";
import { exactText } from "../../api/exact";
import { LIMITS } from "../../api/limits";
import type { Experiment } from "../../api/types";
import { fieldName } from "../../format";
import { withExperiment } from "../../live/changes";
import { keys } from "../../live/keys";
import classes from "./actions.module.css";
import {
  clashes,
  draftOf,
  limitOf,
  patchOf,
  typedText,
  withClashes,
  wrongAssumption,
  wrongLimit,
  wrongSpace,
} from "./edit";
import { NumberField } from "../common/NumberField";
import { Sentence } from "../common/Sentence";
import { FormDialog, type DialogProps } from "./FormDialog";
import { WithDigits } from "./WithDigits";

const TITLE = "Edit this experiment";
/** How often a form is sent again if somebody else saves at the same moment. */
const MOST_TRIES = 3;

/** The form for editing an experiment, even while it runs. */
export default function EditDialog(props: DialogProps) {
  return (
    <WithDigits {...props} title={TITLE}>
      {(experiment) => <Form {...props} experiment={experiment} />}
    </WithDigits>
  );
}

function Form({ experiment, onClose, onDone }: DialogProps) {
  const client = useQueryClient();
  // Keep the experiment as it was when the form was opened, so that changes by others in the meantime are not undone. Fields of
  // which the user has been told have the values that others gave them, so that the user can also set such a field back.
  const [known, setKnown] = useState(experiment);
  // The clashes of which the user has been told. A domain that others have given another type clashes again and again.
  const [told, setTold] = useState<readonly string[]>([]);
  const [begin] = useState(() => draftOf(experiment));
  const [draft, setDraft] = useState(begin);
  const patch = patchOf(known, draft);
  useTypedText(experiment.id, typedText(begin, draft));
  const save = async (left: number): Promise<Experiment> => {
    const now = await api.exactExperiment(experiment.id);
    const lost = clashes(patch, patchOf(known, draftOf(now)));
    const texts = lost.map(exactText);
    if (!texts.every((text) => told.includes(text))) {
      setTold(texts);
      setKnown(withClashes(known, lost));
      throw overwriting(lost);
    }
    try {
      return await api.change(experiment.id, patch, now.revision);
    } catch (error) {
      // Somebody has saved between the two requests: look at what they have changed.
      if (left > 1 && error instanceof ApiError && error.status === 412) return save(left - 1);
      throw error;
    }
  };
  const send = useMutation({
    mutationFn: () => save(MOST_TRIES),
    onSuccess: (answer) => {
      client.setQueryData<Experiment>(keys.experiment(experiment.id), (shown) => withExperiment(shown, answer));
      void client.invalidateQueries({ queryKey: keys.experiments });
      onDone("Saved.");
    },
  });
  // Editing a field clears the service's messages about it.
  const places = mistakesOf(send.error, ["space", "assume"]);
  const wrong = { space: wrongSpace(draft.space), assume: wrongAssumption(draft.assume) };
  const wrongLimits = LIMITS.some(([key, , , word]) => word !== null && wrongLimit(draft.limits[key], word) !== null);
  const edited = (part: Partial<typeof draft>) => {
    send.reset();
    setDraft({ ...draft, ...part });
  };
  return (
    <FormDialog
      title={TITLE}
      verb="Save"
      wrong="It could not be changed"
      size="lg"
      pending={send.isPending}
      error={places.rest ? send.error : null}
      disabled={Object.keys(patch).length === 0 || wrong.space !== null || wrong.assume !== null || wrongLimits}
      onSend={() => send.mutate(undefined, { onSuccess: onClose })}
      onClose={onClose}
    >
      <TextInput
        label="Name"
        value={draft.name}
        onChange={(event) => setDraft({ ...draft, name: event.currentTarget.value })}
        data-autofocus
      />
      <Textarea
        label="Notes"
        description="for people; shown under Set-up"
        autosize
        minRows={3}
        maxRows={12}
        value={draft.notes}
        onChange={(event) => setDraft({ ...draft, notes: event.currentTarget.value })}
      />
      <TextInput
        label="Labels"
        description="such as team=vision, urgent"
        value={draft.tags}
        onChange={(event) => setDraft({ ...draft, tags: event.currentTarget.value })}
      />
      <div className={classes.pair}>
        <NumberField
          label="Priority"
          description="higher priorities get resources first"
          value={draft.priority}
          min={-1000}
          max={1000}
          allowDecimal={false}
          onChange={(priority) => setDraft({ ...draft, priority })}
        />
        <NumberField
          label="Weight"
          description="share among equal priorities"
          value={draft.weight}
          min={0.001}
          max={1000}
          onChange={(weight) => setDraft({ ...draft, weight })}
        />
        <NumberField
          label="Trials"
          description="in total, including those so far"
          value={draft.num_samples}
          min={1}
          allowDecimal={false}
          onChange={(num_samples) => setDraft({ ...draft, num_samples })}
        />
        {LIMITS.map(([key, label, description, word]) => {
          const value = draft.limits[key];
          const set = (limit: number | string) => setDraft({ ...draft, limits: { ...draft.limits, [key]: limit } });
          const field = { label, description: <Sentence text={description} /> };
          return word === null ? (
            <NumberField key={key} {...field} value={typeof value === "number" ? value : ""} min={0} onChange={set} />
          ) : (
            <Autocomplete
              key={key}
              {...field}
              data={[word]}
              value={String(value)}
              error={wrongLimit(value, word)}
              onChange={(text) => set(limitOf(text))}
            />
          );
        })}
      </div>
      <Textarea
        label="Search space"
        description="as YAML; a change makes a new revision, and the results so far are kept"
        classNames={{ input: classes.yaml! }}
        autosize
        minRows={4}
        maxRows={16}
        spellCheck={false}
        value={draft.space}
        error={wrong.space ?? places.at.space}
        onChange={(event) => edited({ space: event.currentTarget.value })}
      />
      {(patch.space || draft.assume) && (
        <Textarea
          label="Values of new parameters in the trials so far"
          description="as YAML, such as width: 32. Enter null if a value is not known; models then leave these trials out"
          classNames={{ input: classes.yaml! }}
          autosize
          minRows={1}
          maxRows={8}
          spellCheck={false}
          value={draft.assume}
          error={wrong.assume ?? places.at.assume}
          onChange={(event) => edited({ assume: event.currentTarget.value })}
        />
      )}
      <p className={classes.words}>Running ranks keep their old limits until they restart.</p>
    </FormDialog>
  );
}

/** Keep what was typed while the form is open, since the page that says that somebody has deleted the experiment shows it. */
function useTypedText(id: string, text: string): void {
  const client = useQueryClient();
  useEffect(() => {
    if (text === "") return;
    const queryKey = keys.typed(id);
    client.setQueryDefaults(queryKey, { gcTime: Infinity });
    client.setQueryData(queryKey, text);
    return () => client.removeQueries({ queryKey });
  }, [client, id, text]);
}

/** Return the error for a patch that would replace what somebody else has saved since the form was opened. */
function overwriting(lost: ReturnType<typeof clashes>): ApiError {
  const errors = lost.map(([pointer, value]) => {
    const shown = value === null ? "none" : typeof value === "string" ? value || "no text" : exactText(value);
    return { pointer, message: `somebody else has changed this meanwhile. Save again to replace: ${shown}` };
  });
  const [title, status] = ["Precondition Failed", 412];
  return new ApiError(status, title, { type: "about:blank", title, status, detail: title, request_id: null, errors });
}

/** What the service says about each of these fields, and whether it says anything else. */
function mistakesOf<Name extends string>(error: Error | null, names: readonly Name[]) {
  const found = error instanceof ApiError ? (error.problem?.errors ?? []) : [];
  const at: Partial<Record<Name, string>> = {};
  let rest = error !== null && found.length === 0;
  for (const { pointer, message } of found) {
    const [field, ...path] = pointer.slice(1).split("/");
    const name = names.find((one) => one === field);
    if (name === undefined) rest = true;
    else
      at[name] = [at[name], `${path.length > 0 ? `${fieldName(`/${path.join("/")}`)}: ` : ""}${message}`]
        .filter(Boolean)
        .join("\n");
  }
  return { at, rest };
}
