import { expect, it } from "vitest";
import { sure, WORDS } from "./words";

it("says on the button that confirms what ends for good", () => {
  expect(sure(WORDS.cancel)).toBe("Cancel this experiment");
  expect(sure(WORDS.kill)).toBe("Kill this experiment");
  expect(sure(WORDS.pause)).toBe("Pause");
});
