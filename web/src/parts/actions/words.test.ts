import { expect, it } from "vitest";
import { EXPERIMENT_VERBS, TRIAL_VERBS } from "../../api/verbs";
import { ACTIONS, TRIAL_ACTIONS, TRIAL_WORDS, WORDS } from "./words";

it("names on the confirming button the action that cannot be undone", () => {
  expect(WORDS.cancel.sure).toBe("Cancel this experiment");
  expect(WORDS.kill.sure).toBe("Kill this experiment");
  expect(WORDS.pause.sure).toBe("Pause");
  expect(TRIAL_WORDS.kill.question).toBe("Kill this trial?");
});

it("has a question for every verb that has no form of its own", () => {
  const withButton = (verbs: object) => Object.entries(verbs).flatMap(([name, { button }]) => (button ? [name] : []));
  expect(ACTIONS).toEqual([...withButton(EXPERIMENT_VERBS), "archive", "unarchive"]);
  expect(ACTIONS).not.toContain("continue");
  expect(TRIAL_ACTIONS).toEqual(withButton(TRIAL_VERBS));
  expect(TRIAL_ACTIONS).toContain("retry");
});
