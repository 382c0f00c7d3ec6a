/** The verbs and their buttons. `python web/build.py types` writes this file; do not edit it. */
export const EXPERIMENT_VERBS = {
  "pause": {
    "summary": "Pause every trial at its next report.",
    "past": "paused",
    "button": {
      "effect": "Every running trial stops at its next report, keeps its newest checkpoint and releases its resources. You can resume it at any time; a trial that has no checkpoint then starts from the beginning.",
      "keep": "Keep it running",
      "final": false,
      "in_menu": false
    }
  },
  "resume": {
    "summary": "Continue an experiment that is paused, or whose script has ended.",
    "past": "resumed",
    "button": {
      "effect": "Its trials continue from their newest checkpoints, or from the beginning if they have none, as resources become free.",
      "keep": "Leave it paused",
      "final": false,
      "in_menu": false
    }
  },
  "cancel": {
    "summary": "End the experiment and all its trials.",
    "past": "cancelled",
    "button": {
      "effect": "Running trials end at their next report, where they can still save a checkpoint, and no new ones start. Results and checkpoints so far are kept.",
      "keep": "Keep it",
      "final": true,
      "in_menu": false
    }
  },
  "kill": {
    "summary": "End the experiment at once, without waiting for reports or last checkpoints.",
    "past": "killed",
    "button": {
      "effect": "Its processes are killed now, without a last report or checkpoint: use this if cancelling takes too long. Results and checkpoints so far are kept.",
      "keep": "Keep it",
      "final": true,
      "in_menu": true
    }
  },
  "continue": {
    "summary": "Run an ended experiment again, if its limits allow more trials.",
    "past": "continued",
    "button": null
  }
} as const;
export const TRIAL_VERBS = {
  "stop": {
    "summary": "End the trial at its next report. The experiment continues.",
    "past": "stopped",
    "button": {
      "effect": "It ends at its next report and keeps its results and checkpoints; the experiment continues without it.",
      "keep": "Keep it running",
      "final": true,
      "in_menu": false
    }
  },
  "kill": {
    "summary": "Kill the trial's processes at once, without waiting for a report or last checkpoint. The experiment continues.",
    "past": "killed",
    "button": {
      "effect": "Its processes are killed now, without a last report or checkpoint: use this if stopping takes too long. It keeps its results and checkpoints so far; the experiment continues without it.",
      "keep": "Keep it running",
      "final": true,
      "in_menu": false
    }
  },
  "retry": {
    "summary": "Retry a failed trial: start a new trial with its configuration from its newest checkpoint.",
    "past": "retried",
    "button": {
      "effect": "A new trial with the same parameters starts from this trial's newest checkpoint, or from the beginning if there is none. An experiment that has ended runs again.",
      "keep": "Leave it",
      "final": false,
      "in_menu": false
    }
  }
} as const;
