/** Adds what happy-dom does not have: sizes on a screen (every element is 800 by 600 pixels), and fonts. Takes the network away. */

import { cleanup, configure } from "@testing-library/react";
import { afterEach } from "vitest";

interface Browser {
  setURL: (url: string) => void;
}

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

// No service answers. A request that a test does not expect would look for one at the address of the page, and log its error.
globalThis.fetch = () => Promise.reject(new TypeError("tests have no service"));

// The suite runs these tests beside others, at the lowest priority: a second is not always enough for a menu to open.
configure({ asyncUtilTimeout: 60_000 });

// A link to a file that a test clicks leaves the address "blob:", to which no path can be added. Files share their window.
const { href } = window.location;
afterEach(() => {
  cleanup();
  if (window.location.protocol === "blob:") (window as unknown as { happyDOM: Browser }).happyDOM.setURL(href);
});
