import { describe, expect, it } from "vitest";
import { clashes, draftOf, limitOf, spacePatch, typedText, withClashes, wrongLimit } from "./edit";

const lr = { type: "loguniform", lower: 1e-4, upper: 0.1 };

describe("the patch of a search space", () => {
  it("is empty for the same space, whatever the order of its parameters", () => {
    expect(spacePatch({ lr, net: { width: 3, depth: 2 } }, { net: { depth: 2, width: 3 }, lr: { ...lr } })).toEqual({});
  });

  it("takes a parameter for new or gone, even if every object inherits a member of its name", () => {
    const space = { constructor: lr, ["__proto__"]: 1 };
    expect(Object.entries(spacePatch({}, space))).toEqual(Object.entries(space));
    expect(Object.entries(spacePatch(space, {}))).toEqual([
      ["constructor", null],
      ["__proto__", null],
    ]);
    expect(clashes({ space: { constructor: lr } }, { space: {} })).toEqual([]);
  });

  it("names only the differences, and replaces each domain as a whole", () => {
    const after = { lr: { ...lr, upper: 1 }, net: { width: 4 }, more: 1 };
    expect(spacePatch({ lr, net: { width: 3, depth: 2 }, gone: 5 }, after)).toEqual({
      lr: { ...lr, upper: 1 },
      net: { width: 4, depth: null },
      gone: null,
      more: 1,
    });
  });

  it("removes the fields of a domain that becomes a group, and of a group that becomes a domain", () => {
    const unit = { type: "uniform", lower: 0, upper: 1 };
    expect(spacePatch({ opt: unit }, { opt: { upper: 5, beta: unit } })).toEqual({
      opt: { type: null, lower: null, upper: 5, beta: unit },
    });
    expect(spacePatch({ opt: { beta: unit } }, { opt: unit })).toEqual({ opt: unit });
  });

  it("gives a parameter the constant null, which alone would remove it", () => {
    const nothing = { type: "const", value: null };
    expect(spacePatch({ a: 1, m: 0.9 }, { a: 1, m: null, n: null, net: { b: { c: null } } })).toEqual({
      m: nothing,
      n: nothing,
      net: { b: { c: nothing } },
    });
    expect(spacePatch({ m: null, net: { b: 1 } }, { m: null, net: { b: null } })).toEqual({ net: { b: nothing } });
    const choice = { type: "choice", categories: [null, { b: null }] };
    expect(spacePatch({}, { choice })).toEqual({ choice });
  });
});

it("takes over what others have changed or removed, at any depth", () => {
  const before = { notes: "a", tags: { "a/b": "1", c: "2" }, limits: { gpu_hours: 3 }, space: {} } as never;
  const after = { notes: "b", tags: { c: "2" }, limits: { gpu_hours: 3 }, space: { net: { "a~/": 1 } } };
  const found: [string, unknown][] = [
    ["/notes", "b"],
    ["/tags/a~1b", null],
    ["/space/net/a~0~1", 1],
  ];
  expect(withClashes(before, found)).toEqual(after);
});

it("accepts a word or a number for a limit that may be either", () => {
  expect(["auto", " 3 ", "0", "-1", ""].map(limitOf)).toEqual(["auto", 3, 0, "-1", ""]);
  const right = ["auto", 3, "-1", ""].map((value) => wrongLimit(value, "auto") === null);
  expect(right).toEqual([true, true, false, false]);
});

it("shows what was typed into the form, and nothing else of it", () => {
  const fields = { name: "digits", notes: "", tags: {}, priority: 0, weight: 1, num_samples: null, limits: {} };
  const before = draftOf({ ...fields, space: { lr } } as never);
  expect(typedText(before, { ...before, limits: { ...before.limits } })).toBe("");
  const long = "word ".repeat(40).trim();
  const typed = typedText(before, { ...before, notes: long, priority: "", limits: { ...before.limits, gpu_hours: 7 } });
  expect(typed).toBe(`notes: ${long}\npriority: ""\ngpu_hours: 7\n`);
});
