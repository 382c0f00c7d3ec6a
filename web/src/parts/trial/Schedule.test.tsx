import { MantineProvider } from "@mantine/core";
import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";
import type { Lineage } from "../../api/types";
import { ARROWS, lineagesOf } from "../../pages/compare";
import { columnsOf } from "../table/trialColumns";
import { mayHaveChanged, overTraining, Parameters } from "./Schedule";

afterEach(cleanup);

const entry = (iteration: number, params: Record<string, unknown>) => ({ iteration, trial_number: 2, params });
const lineage = (...schedule: ReturnType<typeof entry>[]) =>
  ({ trial_id: "trl_3", trial_number: 3, items: [], schedule }) as Lineage;

const BRED = lineage(
  entry(0, { lr: 0.1, width: 32, opt: 0 }),
  entry(5, { lr: 0.3, width: 32, opt: 0 }),
  entry(10, { lr: 0.02, width: 32, opt: 1 }),
);
const LAST = { lr: 0.02, width: 32, opt: 1 };
const LABELS = { opt: ["sgd", "adam"] };

function show(changed: Lineage | null) {
  render(
    <MantineProvider env="test">
      <Parameters params={LAST} labels={LABELS} changed={changed} until="iteration 12" more={<a href="/l">All</a>} />
    </MantineProvider>,
  );
  return [...document.querySelectorAll("dl")].map((list) =>
    [...list.querySelectorAll("div")].map((row) => row.textContent),
  );
}

describe("a configuration that changed during the training", () => {
  it("is shown with its first and last values, and with the schedule between them", () => {
    const [values, schedule] = show(BRED);
    expect(values).toEqual(["lr0.1 → 0.02", "width32", "optsgd → adam"]);
    expect(schedule).toEqual([
      "from the startlr=0.1, width=32, opt=sgd",
      "after iteration 5lr=0.3, width=32, opt=sgd",
      "after iteration 10lr=0.02, width=32, opt=adam",
    ]);
    expect(screen.getByRole("note").textContent).toContain("changed during training");
    expect(screen.getByRole("note").textContent).toContain("to the one at iteration 12");
    expect(screen.getByRole("link", { name: "All" })).toBeTruthy();
    expect(screen.getByRole("button", { name: "Download the schedule as JSON" })).toBeTruthy();
  });

  it("is shown as it is if it did not change", () => {
    expect(show(null)).toEqual([["lr0.02", "width32", "optadam"]]);
    expect(screen.queryByRole("note")).toBeNull();
  });

  it("shows a parameter that went away and came back with an arrow", () => {
    const back = lineage(entry(0, { lr: 0.1 }), entry(5, { lr: 0.2, beta: 0.9 }), entry(9, { lr: 0.1 }));
    expect(overTraining({ lr: 0.1 }, back, {})).toEqual({ lr: "0.1 → 0.1" });
    const gone = lineage(entry(0, { beta: 0.9 }), entry(5, { lr: 0.2 }));
    expect(overTraining({ lr: 0.2 }, gone, {})).toEqual({ lr: "not present → 0.2", beta: "0.9 → not present" });
    const odd = lineage(entry(0, { constructor: 1 }), entry(5, { valueOf: 2 }));
    expect(overTraining({ valueOf: 2 }, odd, {})).toEqual({
      valueOf: "not present → 2",
      constructor: "1 → not present",
    });
  });

  it("is looked for only if the trial took over weights", () => {
    expect(mayHaveChanged([{ cause: "start" }, { cause: "retry" }, { cause: "resume" }])).toBe(false);
    expect(mayHaveChanged([{ cause: "start" }, { cause: "exploit" }])).toBe(true);
    expect(mayHaveChanged([{ cause: "fork" }])).toBe(true);
  });

  it("has an arrow in comparisons, which explain it", () => {
    const one = { ...lineage(entry(0, { lr: 1 })), trial_id: "trl_1" };
    expect([...lineagesOf([{ data: BRED }, { data: one }, { data: undefined }]).keys()]).toEqual(["trl_3"]);
    expect(ARROWS).toContain("changed it during training");
  });
});

it("says that a column has the last values if the search changes parameters during training", () => {
  const trials = [{ number: 0, params: { lr: 0.1 }, last: {}, feasible: null } as never];
  const columns = (changing: boolean) =>
    columnsOf(trials, "loss", "training_iteration", [], "all", false, {}, null, null, changing);
  const brief = columnsOf(trials, "loss", "training_iteration", [], "all", true, {}, null, null, true);
  expect(brief.map(({ label }) => label)).toContain("Last configuration, why");
  const of = (changing: boolean) => columns(changing).find(({ id }) => id === "param:lr")!;
  expect(of(false)).toMatchObject({ label: "lr" });
  expect(of(true)).toMatchObject({
    label: "Last lr",
    hint: expect.stringContaining("changes this parameter") as string,
  });
});
