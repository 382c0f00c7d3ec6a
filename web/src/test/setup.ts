/** What happy-dom does not have: sizes on a screen (every element is 800 by 600 pixels), and fonts. */

import { cleanup, configure } from "@testing-library/react";
import { afterEach } from "vitest";

for (const [name, size] of [
  ["offsetWidth", 800],
  ["offsetHeight", 600],
  ["clientWidth", 800],
  ["clientHeight", 600],
] as const) {
  Object.defineProperty(HTMLElement.prototype, name, { configurable: true, get: () => size });
}

// A textarea that grows with its text waits for fonts. Files share a document, so it may be there already.
if (!("fonts" in document)) Object.defineProperty(document, "fonts", { value: new EventTarget() });

// The suite runs these tests beside others, at the lowest priority: a second is not always enough for a menu to open.
configure({ asyncUtilTimeout: 15_000 });

afterEach(cleanup);
