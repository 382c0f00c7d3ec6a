/** The effect of each verb, in words. The service says which of them an experiment's state allows. */

import type { Action } from "../../api/client";

export interface Words {
  verb: string;
  question: string;
  effect: string;
  keep: string;
  /** It cannot be undone. */
  final: boolean;
}

/** The words of the button that confirms: "Cancel" alone could also mean to close the dialog. */
export function sure({ verb, question, final }: Pick<Words, "verb" | "question" | "final">): string {
  return final ? question.replace(/( at once)?[?]$/, "") : verb;
}

export const WORDS: Record<Action, Words> = {
  pause: {
    verb: "Pause",
    question: "Pause this experiment?",
    keep: "Keep it running",
    effect:
      "Every running trial stops at its next report, keeps its newest checkpoint and releases its resources. You can resume it at any time.",
    final: false,
  },
  resume: {
    verb: "Resume",
    question: "Resume this experiment?",
    keep: "Leave it paused",
    effect: "Its trials continue from their newest checkpoints as resources become free.",
    final: false,
  },
  cancel: {
    verb: "Cancel",
    question: "Cancel this experiment?",
    keep: "Keep it",
    effect:
      "Running trials end at their next report, where they can still save a checkpoint, and no new ones start. Results and checkpoints so far are kept.",
    final: true,
  },
  kill: {
    verb: "Kill",
    question: "Kill this experiment at once?",
    keep: "Keep it",
    effect:
      "Its processes end now, without a last report or checkpoint: use it if cancelling takes too long. Results and checkpoints so far are kept.",
    final: true,
  },
  archive: {
    verb: "Archive",
    question: "Archive this experiment?",
    keep: "Leave it in the list",
    effect: "It disappears from the list of experiments. No data are deleted, and you can bring it back.",
    final: false,
  },
  unarchive: {
    verb: "Bring back",
    question: "Show this experiment in the list again?",
    keep: "Leave it archived",
    effect: "It appears in the list of experiments again.",
    final: false,
  },
};
