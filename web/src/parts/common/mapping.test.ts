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
    expect(why).toContain("Map keys must be unique at line 3");
  });

  it("keeps keys that only look alike", () => {
    expect(readMapping("1: a\n'01': b\n1.5: c", "lr: 0.1")[0]).toEqual({ "1": "a", "01": "b", "1.5": "c" });
  });
});
