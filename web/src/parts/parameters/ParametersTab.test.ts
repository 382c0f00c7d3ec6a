import { expect, it } from "vitest";
import { inOrder, type Dimension } from "../../charts/dimensions";
import { pairOf } from "./ContourPanel";
import { firstAxes } from "./ParametersTab";

it("draws the axes of the first parameters, of objectives and of selections", () => {
  const parameters = Array.from({ length: 300 }, (_, i) => ({ id: `p${i}`, objective: false }) as Dimension);
  const all = [...parameters, { id: "objective:loss", objective: true } as Dimension];
  const ids = firstAxes(all, { p200: { from: 0, to: 1 } }).map(({ id }) => id);
  expect(ids).toEqual([...parameters.slice(0, 50).map(({ id }) => id), "p200", "objective:loss"]);
  expect(firstAxes(all.slice(260), {})).toEqual(all.slice(260));
});

it("drops no axis if one with a selection is moved to the front of the first parameters", () => {
  const parameters = Array.from({ length: 300 }, (_, i) => ({ id: `p${i}`, objective: false }) as Dimension);
  const all = [...parameters, { id: "objective:loss", objective: true } as Dimension];
  const first = parameters.slice(0, 50).map(({ id }) => id);
  const moved = inOrder(all, ["p200", ...first, "objective:loss"]);
  const brush = { from: 0, to: 1 };
  expect(firstAxes(moved, { p200: brush }, all).map(({ id }) => id)).toEqual(["p200", ...first, "objective:loss"]);
  // An axis that is drawn anyway brings no other one when it gets a selection.
  expect(firstAxes(all, { p3: brush }, all)).toEqual(firstAxes(all, {}, all));
});

it("keeps the objective last if only some of the axes were drawn when one was moved", () => {
  const all = ["a", "b", "c", "loss"].map((id) => ({ id, objective: id === "loss" }) as Dimension);
  const ids = (named: string[]) => inOrder(all, named).map(({ id }) => id);
  expect(ids(["b", "a", "loss"])).toEqual(["b", "a", "c", "loss"]);
  expect(ids(["loss", "b"])).toEqual(["loss", "b", "a", "c"]);
  expect(ids(["c"])).toEqual(["c", "a", "b", "loss"]);
});

it("shows two parameters together that some trial has both, not those of two branches", () => {
  const dimensions = ["adam/beta", "sgd/lr", "adam/lr", "loss"].map(
    (id) => ({ id, objective: id === "loss" }) as Dimension,
  );
  const trials = [{ params: { "sgd/lr": 1 } }, { params: { "adam/beta": 0.9, "adam/lr": 1 } }];
  const shown = (px: string | null, py: string | null, of: typeof trials = trials) => {
    const { across, up } = pairOf(dimensions, of, px, py);
    return [across?.id, up?.id];
  };
  expect(shown(null, null)).toEqual(["adam/beta", "adam/lr"]);
  expect(shown(null, "sgd/lr")).toEqual(["adam/beta", "sgd/lr"]);
  expect(shown("sgd/lr", null, [])).toEqual(["sgd/lr", "adam/beta"]);
  dimensions.splice(1, 0, { id: "constructor", objective: false } as Dimension);
  expect(shown(null, null)).toEqual(["adam/beta", "adam/lr"]);
});
