import { describe, expect, it } from "vitest";
import { asKind, fieldText, freshName, rowsOfSpace, withText } from "./space";

const SPACE = {
  lr: { type: "loguniform", lower: 1e-4, upper: 0.1 },
  width: { type: "choice", categories: [16, 32, "wide, or not", true, null] },
  epochs: 27,
  model: { depth: { type: "randint", lower: 1, upper: 9 } },
  block: { type: "choice", categories: [{ kind: "plain" }, 1] },
  odd: { type: "uniform", lower: 0, upper: 1, mean: 3 },
};

describe("the space in the form", () => {
  const rows = rowsOfSpace({ space: SPACE });

  it("has a row for each parameter, and leaves everything without a field to the YAML", () => {
    expect(rows.map(({ name, kind }) => [name, kind])).toEqual([
      ["lr", "loguniform"],
      ["width", "choice"],
      ["epochs", "const"],
      ["model", null],
      ["block", null],
      ["odd", null],
    ]);
    expect(rowsOfSpace(null)).toEqual([]);
    expect(rowsOfSpace({ space: [1] })).toEqual([]);
  });

  it("reads back what it shows", () => {
    for (const { domain, kind } of rows) {
      if (kind === null || typeof domain !== "object") continue;
      for (const field of Object.keys(domain as object).filter((one) => one !== "type"))
        expect(withText(domain, field, fieldText(domain, field))).toEqual(domain);
    }
    expect(fieldText(SPACE.width, "categories")).toBe('16, 32, "wide, or not", true, null');
    const penalty = { type: "choice", categories: ["", "l2"] };
    expect(withText(penalty, "categories", `${fieldText(penalty, "categories")}, l1`)).toEqual({
      type: "choice",
      categories: ["", "l2", "l1"],
    });
    expect(withText(27, "value", fieldText(27, "value"))).toEqual({ type: "const", value: 27 });
  });

  it("understands numbers, texts and lists as people type them", () => {
    expect(withText(SPACE.lr, "lower", "1e-3")).toEqual({ ...SPACE.lr, lower: 0.001 });
    expect(withText(SPACE.lr, "lower", "0,001")).toEqual({ ...SPACE.lr, lower: 0.001 });
    const whole = { type: "randint", lower: 1, upper: 10 };
    expect(withText(whole, "upper", "1,000")).toEqual({ ...whole, upper: "1,000" });
    expect(withText(1, "value", "0,5")).toEqual({ type: "const", value: "0,5" });
    expect(withText(SPACE.lr, "lower", "")).toEqual({ ...SPACE.lr, lower: null });
    expect(withText(SPACE.lr, "upper", "a lot")).toEqual({ ...SPACE.lr, upper: "a lot" });
    expect(withText(SPACE.width, "categories", 'relu,  gelu, "3", 4,')).toEqual({
      type: "choice",
      categories: ["relu", "gelu", "3", 4],
    });
  });

  it("understands values as they are written in Python and in JSON", () => {
    const typed = (text: string) => (withText(SPACE.width, "categories", text) as { categories: unknown[] }).categories;
    expect(typed("[16, 32]")).toEqual([16, 32]);
    expect(typed(" ('adam', 'sgd, nesterov', \"lion\")")).toEqual(["adam", "sgd, nesterov", "lion"]);
    expect(typed("[True, False, None, 'it\\'s']")).toEqual([true, false, null, "it's"]);
    expect(typed("don't, can't")).toEqual(["don't", "can't"]);
    expect(typed("[]")).toEqual([]);
    expect(typed("(a), (b)")).toEqual(["(a)", "(b)"]);
    expect(withText(1, "value", "False")).toEqual({ type: "const", value: false });
    const texts = { type: "choice", categories: ["True", "None", "'a'", "[16", "32]", "(1)", "don't"] };
    expect(withText(texts, "categories", fieldText(texts, "categories"))).toEqual(texts);
    const single = { type: "choice", categories: ["[16]"] };
    expect(withText(single, "categories", fieldText(single, "categories"))).toEqual(single);
  });

  it("keeps the values of a domain that fit its new type", () => {
    expect(asKind(SPACE.lr, "uniform")).toEqual({ type: "uniform", lower: 1e-4, upper: 0.1 });
    expect(asKind({ type: "uniform", lower: 0, upper: 5 }, "loguniform")).toEqual({
      type: "loguniform",
      lower: 0.0001,
      upper: 5,
    });
    expect(asKind(SPACE.width, "grid_search")).toEqual({ type: "grid_search", values: SPACE.width.categories });
    expect(asKind(27, "const")).toEqual({ type: "const", value: 27 });
    expect(asKind(SPACE.lr, "choice")).toEqual({ type: "choice", categories: [1, 2] });
  });

  it("finds a new name", () => {
    expect(freshName([])).toBe("p1");
    expect(freshName([{ name: "p2", domain: 1, kind: "const" }])).toBe("p3");
  });
});
