import { describe, expect, it } from "vitest";
import { spacePatch } from "./edit";

const lr = { type: "loguniform", lower: 1e-4, upper: 0.1 };

describe("the patch of a search space", () => {
  it("is empty for the same space, in whatever order", () => {
    expect(spacePatch({ lr, net: { width: 3, depth: 2 } }, { net: { depth: 2, width: 3 }, lr: { ...lr } })).toEqual({});
  });

  it("names only what differs, and replaces a domain as a whole", () => {
    const after = { lr: { ...lr, upper: 1 }, net: { width: 4 }, more: 1 };
    expect(spacePatch({ lr, net: { width: 3, depth: 2 }, gone: 5 }, after)).toEqual({
      lr: { ...lr, upper: 1 },
      net: { width: 4, depth: null },
      gone: null,
      more: 1,
    });
  });
});
