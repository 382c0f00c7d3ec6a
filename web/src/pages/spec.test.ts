import { describe, expect, it } from "vitest";
import { EXAMPLE, numberOf, textOf, withField } from "./spec";

describe("the spec of a new experiment", () => {
  it("changes one field and keeps the others", () => {
    const spec = withField(EXAMPLE, ["scaling", "num_workers"], 4);
    expect(spec["scaling"]).toEqual({ num_workers: 4 });
    expect(spec["space"]).toBe(EXAMPLE["space"]);
    expect(withField(spec, ["limits", "max_failures"], 2)["limits"]).toEqual({ max_failures: 2 });
  });

  it("leaves a field out that is emptied", () => {
    expect("max_t" in withField(EXAMPLE, ["max_t"], undefined)).toBe(false);
    expect("name" in withField(EXAMPLE, ["name"], "")).toBe(false);
  });

  it("shows in the form what it can", () => {
    expect(textOf({ metric: ["loss", "size"] }, "metric")).toBe("loss, size");
    expect(textOf(null, "metric")).toBe("");
    expect(numberOf({ max_t: 9 }, "max_t")).toBe(9);
    expect(numberOf({ max_t: "9" }, "max_t")).toBe("");
  });
});
