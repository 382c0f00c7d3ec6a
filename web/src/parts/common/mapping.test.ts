import { describe, expect, it } from "vitest";
import { readMapping } from "./mapping";

describe("a mapping", () => {
  it.each([
    ["1", "0x1"],
    ["1", "1.0"],
    ["1", "'1'"],
    ["true", "'true'"],
  ])("is refused if the keys %s and %s would be one in JSON", (one, other) => {
    const [found, why] = readMapping(`space:\n  ${one}: a\n  ${other}: b\n`, "lr: 0.1");
    expect(found).toBeNull();
    expect(why).toBe(`Map keys must be unique at line 3, column 3: ${other}: b`);
  });

  it.each([
    ["mode: max\nspace\n  lr: 1\n  width: 2\n", "Implicit keys need to be on a single line at line 2, column 1: space"],
    ["a: 'b\n", "Missing closing 'quote at line 2, column 1"],
    [
      "a: [1",
      "Flow sequence in block collection must be sufficiently indented and end with a ] at line 1, column 6: a: [1",
    ],
  ])("is refused with the first error of %j and its line", (text, why) => {
    expect(readMapping(text, "lr: 0.1")).toEqual([null, why]);
  });

  it("keeps keys that only look alike", () => {
    expect(readMapping("1: a\n'01': b\n1.5: c", "lr: 0.1")[0]).toEqual({ "1": "a", "01": "b", "1.5": "c" });
  });
});
