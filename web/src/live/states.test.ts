import { expect, it } from "vitest";
import { isPopulationBased } from "./states";

it("recognizes the schedulers under which trials take over weights", () => {
  const of = (type: string) => isPopulationBased({ scheduler: { type }, resolved: null });
  expect(["pbt", "pb2", "pbt_replay", "asha", "fifo"].filter(of)).toEqual(["pbt", "pb2"]);
});
