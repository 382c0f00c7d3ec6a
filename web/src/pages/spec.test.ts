import { describe, expect, it } from "vitest";
import { parse, stringify } from "yaml";
import type { Experiment } from "../api/types";
import { EXAMPLE, newSeed, numberOf, specOf, textOf, withField, withName, type Spec } from "./spec";

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

  it("renames a parameter of the space in its place", () => {
    expect(
      withName("name: a\nspace:\n  lr: {type: uniform, lower: 0, upper: 1} # the rate\n  b: 1\n", "lr", "rate"),
    ).toBe("name: a\nspace:\n  rate: { type: uniform, lower: 0, upper: 1 } # the rate\n  b: 1\n");
    expect(withName("name: a\n", "lr", "rate")).toBe("name: a\n");
  });

  it("takes over the requested options of another experiment, including that it learns from no earlier one", () => {
    const source = {
      name: "a",
      project: "default",
      entrypoint: "m:f",
      metric: "loss",
      mode: "min",
      scope: "all",
      bundle: null,
      objectives: [{ metric: "loss", mode: "min" }],
      space: { lr: { type: "uniform", lower: 0, upper: 1 } },
      search: {},
      scheduler: { type: "asha" },
      stop: {},
      num_samples: 4,
      max_t: null,
      time_attr: "training_iteration",
      seed: 0,
      warm_start: null,
      scaling: { num_workers: 2, backend: null },
      limits: {},
    } as unknown as Experiment;
    const asked = {
      name: "a",
      entrypoint: "m:f",
      metric: "loss",
      mode: "min",
      space: { lr: { type: "uniform", lower: 0, upper: 1 } },
      scheduler: { type: "asha" },
      num_samples: 4,
      seed: 0,
      scaling: { num_workers: 2 },
    };
    expect(parse(stringify(specOf(source)))).toEqual({ ...asked, warm_start: null });
    expect(specOf({ ...source, warm_start: "auto" })).toEqual({ ...asked, warm_start: "auto" });
    const kept = { bundle: "0a".repeat(32), scope: "last" } as const;
    expect(specOf({ ...source, ...kept })).toEqual({ ...asked, ...kept, warm_start: null });
  });

  it("leaves out a field that was emptied", () => {
    expect(parse(withField(text, ["max_t"], undefined))).not.toHaveProperty("max_t");
    expect(parse(withField(text, ["name"], ""))).not.toHaveProperty("name");
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
