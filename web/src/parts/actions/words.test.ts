import { expect, it } from "vitest";
import { ACTIONS, TRIAL_ACTIONS, TRIAL_WORDS, WORDS } from "./words";

it("says on the button that confirms what ends for good", () => {
  expect(WORDS.cancel.sure).toBe("Cancel this experiment");
  expect(WORDS.kill.sure).toBe("Kill this experiment");
  expect(WORDS.pause.sure).toBe("Pause");
  expect(TRIAL_WORDS.kill.question).toBe("Kill this trial?");
});

it("has a question for every verb that has no form of its own", () => {
  expect(ACTIONS).toEqual(["pause", "resume", "cancel", "kill", "archive", "unarchive"]);
  expect(TRIAL_ACTIONS).toEqual(["stop", "kill", "retry"]);
});
