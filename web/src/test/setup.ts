/** Sizes on a screen, which happy-dom does not have. Every element is 800 by 600 pixels. */

import { cleanup } from "@testing-library/react";
import { afterEach } from "vitest";

for (const [name, size] of [
  ["offsetWidth", 800],
  ["offsetHeight", 600],
  ["clientWidth", 800],
  ["clientHeight", 600],
] as const) {
  Object.defineProperty(HTMLElement.prototype, name, { configurable: true, get: () => size });
}

afterEach(cleanup);
