import { expect, test } from "vitest";
import { isSorted, nextSort, sortChoices } from "./ExperimentsPage";

test("only a column can be sorted by", () => {
  for (const column of ["name", "-best", "duration"]) expect(isSorted(column)).toBe(true);
  for (const other of ["", "-", "toString", "constructor", "--best", "nam"]) expect(isSorted(other)).toBe(false);
});

test("a column is sorted in its usual order, then in the opposite one, then not at all", () => {
  expect(nextSort("name", "best")).toBe("-best");
  expect(nextSort("-best", "best")).toBe("best");
  expect(nextSort("best", "best")).toBe("");
});

test("the menu contains the present order, whichever it is", () => {
  const usual = sortChoices("");
  expect(usual).toHaveLength(7);
  expect(usual).toContainEqual({ value: "-best", label: "by best value, largest first" });
  expect(sortChoices("-best")).toEqual(usual);
  expect(sortChoices("best")).toContainEqual({ value: "best", label: "by best value, smallest first" });
  expect(sortChoices("-name")).toContainEqual({ value: "-name", label: "by name, Z to A" });
});
