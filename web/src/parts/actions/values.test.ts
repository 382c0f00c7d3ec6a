import { describe, expect, it } from "vitest";
import type { Experiment } from "../../api/types";
import { draftOf, patchOf } from "./edit";
import { tagsOf, tagsText } from "./tags";
import { fieldsOf, filled, textOf, textsOf, valueOf } from "./values";

const SPACE = {
  lr: { type: "loguniform", lower: 1e-4, upper: 0.1 },
  width: { type: "choice", categories: [16, 32, "wide"] },
  block: { type: "choice", categories: [{ depth: 2 }, { depth: 4 }] },
};
const LABELS = { block: ["shallow", "deep"] };

describe("the fields of a search space", () => {
  const [lr, width, block] = fieldsOf({ space: SPACE, labels: LABELS });

  it("are text fields, or menus of the categories or their labels", () => {
    expect(lr).toEqual({ name: "lr", about: "loguniform(1e-4, 0.1)", options: null, decimal: true });
    expect(width!.options?.map(({ text }) => text)).toEqual(["16", "32", "wide"]);
    expect(block!.options).toEqual([
      { text: "shallow", value: 0 },
      { text: "deep", value: 1 },
    ]);
  });

  it("hold numbers as numbers, categories as themselves, labels as their indices, and other text as text", () => {
    expect(valueOf(lr!, "1e-3")).toBe(0.001);
    expect(valueOf(lr!, "0,05")).toBe(0.05);
    expect(valueOf(lr!, "0,125")).toBe(0.125);
    expect(valueOf(lr!, "1,000")).toBe("1,000"); // not 1
    expect(valueOf(lr!, "fast")).toBe("fast");
    expect(valueOf(width!, "32")).toBe(32);
    expect(valueOf(width!, "wide")).toBe("wide");
    expect(valueOf(block!, "deep")).toBe(1);
  });

  it("take a comma for a decimal one only where a number has decimals", () => {
    const space = { epochs: { type: "randint", lower: 1, upper: 2000 } };
    const [epochs] = fieldsOf({ space, labels: {} });
    expect(valueOf(epochs!, "1,000")).toBe("1,000");
  });

  it("show the values of a trial, and send back the same ones", () => {
    const params = { lr: 0.0123456789, width: 32, block: 1 };
    const fields = [lr!, width!, block!];
    const texts = Object.fromEntries(fields.map((field) => [field.name, textOf(field, params[field.name as "lr"])]));
    expect(filled(fields, texts)).toEqual(params);
  });

  it("tell apart categories that begin with the same digits or have the same label", () => {
    const space = {
      seed: { type: "choice", categories: [20240101, 20240102, 20240102] },
      lr: { type: "choice", categories: [0.00012345, 0.00012349] },
      level: { type: "choice", categories: ["1", 1, 2] },
      net: { type: "choice", categories: [{ depth: 2 }, { depth: 4 }] },
    };
    const fields = fieldsOf({ space, labels: { net: ["mlp", "mlp"] } });
    expect(fields.map((field) => field.options!.map(({ text }) => text))).toEqual([
      ["20240101", "20240102", "20240102"],
      ["0.00012345", "0.00012349"],
      ['1 ("1")', "1 (1)", "2"],
      ["mlp (0)", "mlp (1)"],
    ]);
    const params = { seed: 20240102, lr: 0.00012349, level: 1, net: 1 };
    const texts = Object.fromEntries(fields.map((field) => [field.name, textOf(field, params[field.name as "lr"])]));
    expect(filled(fields, texts)).toEqual(params);
  });

  it("send the category null as null", () => {
    const space = { reg: { type: "choice", categories: [null, "l2"] } };
    const fields = fieldsOf({ space, labels: {} });
    expect(filled(fields, { reg: textOf(fields[0]!, null) })).toEqual({ reg: null });
  });

  it("send texts that are empty, or begin or end with a blank, as they are", () => {
    const space = {
      flag: { type: "choice", categories: ["", "--amp"] },
      glue: { type: "choice", categories: [" ", " a", "a"] },
    };
    for (const params of [
      { flag: "", glue: " a" },
      { flag: "--amp", glue: " " },
    ]) {
      const texts = textsOf({ space, labels: {} }, params);
      expect(Object.values(texts)).not.toContain("");
      expect(filled(fieldsOf({ space, labels: {} }), texts)).toEqual(params);
    }
  });

  it("are those of groups and of chosen branches, but not of constants", () => {
    const unit = { type: "uniform", lower: 0, upper: 1 };
    const space = {
      opt: { beta: unit, fixed: 3, "a/b": unit },
      pair: { type: "tuple", items: [unit, 2] },
      grid: { grid_search: [1, 2] },
      made: { type: "sample_from", index: 0, repr: "f" },
      net: { type: "choice", categories: [{ kind: "mlp", width: unit }, { kind: "cnn", deep: { depth: unit } }, null] },
    };
    const labels = { net: ["mlp", "cnn", null] };
    const names = (net: string) =>
      fieldsOf({ space, labels }, ({ name }) => (name === "net" ? net : "")).map(({ name }) => name);
    const common = ["opt/beta", "opt/a~1b", "pair/0", "grid", "net"];
    expect(names("")).toEqual(common);
    expect(names("null")).toEqual(common);
    expect(names("mlp")).toEqual([...common, "net/0/width"]);
    expect(names("cnn")).toEqual([...common, "net/1/deep/depth"]);
    const best = { "opt/beta": 0.3, "opt/a~1b": 0.2, "pair/0": 0.1, grid: 2, net: 1, "net/1/deep/depth": 0.5 };
    const texts = textsOf({ space, labels }, best);
    expect(
      filled(
        fieldsOf({ space, labels }, ({ name }) => texts[name]!),
        texts,
      ),
    ).toEqual(best);
    expect(Object.keys(textsOf({ space, labels }, best, ["net/0/width", "gone"]))).toEqual([
      ...Object.keys(best),
      "gone",
    ]);
  });

  it("leave out empty fields, so that their values are drawn", () => {
    expect(filled([lr!, width!], { lr: " ", width: "16" })).toEqual({ width: 16 });
  });
});

describe("labels", () => {
  it("are read from text, and removed ones are sent as null", () => {
    expect(tagsOf("team=vision, urgent", { team: "audio", old: "x" })).toEqual({
      team: "vision",
      urgent: "",
      old: null,
    });
    expect(tagsOf(tagsText({ a: "b=c", d: "" }), { a: "b=c", d: "" })).toEqual({});
  });

  it("stay the same while others are added, whatever they contain", () => {
    const tags = {
      note: "a,b",
      said: 'the "best", so far',
      lines: "a\nb",
      wide: " c ",
      "k,2": "v",
      inch: '5"',
      d: "",
    };
    expect(tagsText({ note: "a,b", team: "vision" })).toBe('note="a,b", team=vision');
    expect(tagsOf(tagsText(tags), {})).toEqual(tags);
    expect(tagsOf(`${tagsText(tags)}, urgent`, tags)).toEqual({ urgent: "" });
    expect(tagsOf('a=5", b="x, y=z', {})).toEqual({ a: '5"', b: '"x', y: "z" });
  });
});

describe("an edit", () => {
  const experiment = {
    name: "digits",
    notes: "",
    tags: { team: "vision" },
    priority: 0,
    weight: 1,
    num_samples: 16,
    space: { lr: { type: "loguniform", lower: 1e-4, upper: 0.1 } },
    limits: { max_concurrent_trials: 4, time_budget_s: null, gpu_hours: 2, max_failures: 0, hang_timeout_s: 1800 },
  } as unknown as Experiment;

  it("sends nothing if nothing was changed", () => expect(patchOf(experiment, draftOf(experiment))).toEqual({}));

  it("sends only what was changed, and null for a limit that was lifted", () => {
    const draft = draftOf(experiment);
    const limits = { ...draft.limits, gpu_hours: "" as const, max_concurrent_trials: 8 };
    expect(patchOf(experiment, { ...draft, tags: "", num_samples: 20, limits })).toEqual({
      tags: { team: null },
      num_samples: 20,
      limits: { gpu_hours: null, max_concurrent_trials: 8 },
    });
  });
});
