import { describe, expect, it } from "vitest";
import { parse, stringify } from "yaml";
import { withText } from "./space";
import { EXAMPLE, inReadingOrder, newSeed, numberOf, textOf, withField, withName, type Spec } from "./spec";

describe("the spec of a new experiment", () => {
  const text = stringify(EXAMPLE);

  it("changes one field and keeps the others", () => {
    const spec = parse(withField(text, ["scaling", "num_workers"], 4)) as Spec;
    expect(spec).toEqual({ ...EXAMPLE, scaling: { num_workers: 4 } });
    expect(parse(withField("name: a\nlimits:\n", ["limits", "max_failures"], 2))).toEqual({
      name: "a",
      limits: { max_failures: 2 },
    });
    expect(parse(withField("name: a\n", ["scheduler"], { type: "asha" }))).toEqual({
      name: "a",
      scheduler: { type: "asha" },
    });
  });

  it("keeps comments and the formatting of the rest", () => {
    const written = "name: a # the first try\nspace: {lr: {type: uniform, lower: 0, upper: 1}}\n# enough\nmax_t: 3\n";
    expect(withField(written, ["max_t"], 9)).toBe(
      "name: a # the first try\nspace: { lr: { type: uniform, lower: 0, upper: 1 } }\n# enough\nmax_t: 9\n",
    );
  });

  it("keeps whole numbers above 2^53", () => {
    const seed = "seed: 9223372036854775807\nspace:\n  a: 9007199254740993\n";
    expect(withField(seed, ["name"], "a")).toBe(`${seed}name: a\n`);
    expect(withName(seed, "a", "b")).toBe(seed.replace("a:", "b:"));
    expect(withText(1, "value", "9007199254740993")).toEqual({ type: "const", value: 9007199254740993n });
    expect(withField(seed, ["space", "a"], { type: "const", value: 9007199254740993n })).toContain(
      "value: 9007199254740993\n",
    );
  });

  it("renames a parameter of the space in its place", () => {
    expect(
      withName("name: a\nspace:\n  lr: {type: uniform, lower: 0, upper: 1} # the rate\n  b: 1\n", "lr", "rate"),
    ).toBe("name: a\nspace:\n  rate: { type: uniform, lower: 0, upper: 1 } # the rate\n  b: 1\n");
    expect(withName("name: a\n", "lr", "rate")).toBe("name: a\n");
  });

  it("is read from what it is to how it runs, and keeps fields that are not known here", () => {
    const spec = {
      notes: "a",
      executor: "agents",
      warm_start: null,
      space: {},
      entrypoint: "m:f",
      later: 1,
      name: "a",
    };
    const order = ["name", "entrypoint", "space", "executor", "warm_start", "notes", "later"];
    expect(Object.entries(inReadingOrder(spec))).toEqual(order.map((name) => [name, (spec as Spec)[name]]));
  });

  it("leaves out a field that was emptied", () => {
    expect(parse(withField(text, ["max_t"], undefined))).not.toHaveProperty("max_t");
    expect(parse(withField(text, ["name"], ""))).not.toHaveProperty("name");
    expect(withField(text, ["limits", "repeats"], ""), "without its section, it is empty already").toBe(text);
  });

  it("shows in the form what it can", () => {
    expect(textOf({ metric: ["loss", "size"] }, "metric")).toBe("loss, size");
    expect(textOf(null, "metric")).toBe("");
    expect(numberOf({ max_t: 9 }, "max_t")).toBe(9);
    expect(numberOf({ max_t: "9" }, "max_t")).toBe("");
  });

  it("takes a seed that is not the one of the original", () => {
    expect(newSeed(3, () => 0.25)).toBe(250_000);
    expect(newSeed(250_000, () => 0.25)).toBe(250_001);
  });
});
