/** The questions of the page before it sends a verb. The service declares the verbs, and says which of them a state allows. */

import type { Action, TrialAction } from "../../api/client";
import { EXPERIMENT_VERBS, TRIAL_VERBS } from "../../api/verbs";

export interface Words {
  /** The label of the button. */
  verb: string;
  question: string;
  /** The label of the button that confirms: "Cancel" alone could also mean to close the dialog. */
  sure: string;
  effect: string;
  keep: string;
  /** True if the action cannot be undone. */
  final: boolean;
  /** A short description. A button that has one is in the menu of an experiment. */
  about?: string;
}

interface Button {
  effect: string;
  keep: string;
  final: boolean;
  in_menu: boolean;
}

type Verbs = Readonly<Record<string, { summary: string; button: Button | null }>>;

function wordsOf(verbs: Verbs, noun: string): Record<string, Words> {
  const found = Object.entries(verbs).flatMap(([name, { summary, button }]) => {
    if (!button) return [];
    const { in_menu, ...rest } = button;
    const verb = name.charAt(0).toUpperCase() + name.slice(1);
    const sure = button.final ? `${verb} this ${noun}` : verb;
    const about = in_menu ? { about: summary.replace(/[.]$/, "") } : {};
    return [[name, { verb, question: `${verb} this ${noun}?`, sure, ...rest, ...about }]];
  });
  return Object.fromEntries(found) as Record<string, Words>;
}

export const WORDS: Record<Action, Words> = {
  ...(wordsOf(EXPERIMENT_VERBS, "experiment") as Record<Exclude<Action, "archive" | "unarchive">, Words>),
  archive: {
    verb: "Archive",
    question: "Archive this experiment?",
    sure: "Archive",
    keep: "Leave it in the list",
    effect: "It disappears from the list of experiments. No data are deleted, and you can bring it back.",
    final: false,
    about: "Hide it from the list; no data are deleted",
  },
  unarchive: {
    verb: "Bring back",
    question: "Show this experiment in the list again?",
    sure: "Bring back",
    keep: "Leave it archived",
    effect: "It appears in the list of experiments again.",
    final: false,
    about: "Show it in the list again",
  },
};

export const ACTIONS = Object.keys(WORDS) as Action[];

export const TRIAL_WORDS: Record<TrialAction, Words> = wordsOf(TRIAL_VERBS, "trial");

/** Why an action that was possible when its question was asked can no longer be done. `archived` is absent for a trial. */
export function lateWords(action: Action | TrialAction, state: string, archived?: boolean): string {
  const done = (action === "archive" && archived) || (action === "unarchive" && !archived);
  return done ? "Somebody has done this meanwhile." : `This can no longer be done. It is ${state} now.`;
}

export const TRIAL_ACTIONS = Object.keys(TRIAL_WORDS) as TrialAction[];
