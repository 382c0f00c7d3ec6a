import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen, within } from "@testing-library/react";
import { MemoryRouter, useLocation } from "react-router";
import { describe, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment, Replay } from "../../api/types";
import { useAddress } from "../../pages/useAddress";
import { optionsOf, rowsOf, WhatIf } from "./WhatIf";

const EXPERIMENT = {
  id: "exp_1",
  metric: "accuracy",
  mode: "max",
  scope: "all",
  method: "random + asha",
} as unknown as Experiment;
const totals = { trials: 3, reports: 2000, training_s: 60, duration_s: 30, best_trial: 1, best_value: 0.9 };
const ended = (state: "completed" | "stopped", iterations: number) => ({ state, iterations, value: 0.5, reason: "" });
const REPLAY = {
  summary: "It would have found the same with half of the training.",
  method: "median",
  censored: 0,
  notes: ["no trial saved checkpoints"],
  recorded: totals,
  replayed: { ...totals, reports: 1000 },
  trials: [
    { number: 0, params: {}, recorded: ended("completed", 9), replayed: ended("completed", 9) },
    { number: 1, params: {}, recorded: ended("completed", 9), replayed: ended("stopped", 3) },
    { number: 2, params: {}, recorded: ended("completed", 9), replayed: null },
  ],
} as unknown as Replay;

function Page({ onSelect }: { onSelect: (number: number) => void }) {
  const address = useAddress();
  return (
    <>
      <WhatIf experiment={EXPERIMENT} onSelect={onSelect} address={address} />
      <p data-testid="address">{useLocation().search}</p>
    </>
  );
}

describe("what if", () => {
  it("replays under another scheduler, and shows both side by side with the trials that differ", async () => {
    const replay = vi.spyOn(api, "replay").mockResolvedValue(REPLAY);
    const selected: number[] = [];
    render(
      <MantineProvider env="test">
        <QueryClientProvider client={new QueryClient()}>
          <MemoryRouter>
            <Page onSelect={(number) => selected.push(number)} />
          </MemoryRouter>
        </QueryClientProvider>
      </MantineProvider>,
    );
    const button = screen.getByRole<HTMLButtonElement>("button", { name: "Replay" });
    expect(button.disabled).toBe(true);
    fireEvent.click(screen.getByRole("combobox", { name: "Scheduler" }));
    fireEvent.click(screen.getByRole("option", { name: "median", hidden: true }));
    fireEvent.change(screen.getByLabelText("Its options"), { target: { value: "grace_period=2" } });
    fireEvent.blur(screen.getByLabelText("Its options"));
    expect(screen.getByTestId("address").textContent).toBe("?if=median&ifwith=grace_period%3D2");
    await act(() => Promise.resolve(fireEvent.click(button)));
    expect(replay).toHaveBeenCalledWith("exp_1", {
      scheduler: { type: "median", grace_period: 2 },
      search: null,
      max_concurrent_trials: null,
    });
    expect((await screen.findByRole("status")).textContent).toBe(REPLAY.summary);
    const cells = within(screen.getByRole("row", { name: /^Reports/ })).getAllByRole("cell");
    expect(cells.map((cell) => cell.textContent)).toEqual(["2,000", "1,000 (better)"]);
    expect(screen.getByText("2 of 3 trials would have ended differently")).toBeTruthy();
    expect(screen.queryByRole("button", { name: "0" })).toBeNull();
    fireEvent.click(screen.getByRole("button", { name: "2" }));
    expect(selected).toEqual([2]);
    fireEvent.click(screen.getByLabelText("Show all trials"));
    expect(screen.getByRole("button", { name: "0" })).toBeTruthy();
  });

  it("shows the outcome of a link at once", async () => {
    const replay = vi.spyOn(api, "replay").mockResolvedValue(REPLAY);
    replay.mockClear();
    render(
      <MantineProvider env="test">
        <QueryClientProvider client={new QueryClient()}>
          <MemoryRouter initialEntries={["/?if=asha&ifwith=reduction_factor%3D4&ifslots=8"]}>
            <Page onSelect={() => undefined} />
          </MemoryRouter>
        </QueryClientProvider>
      </MantineProvider>,
    );
    expect((await screen.findByRole("status")).textContent).toBe(REPLAY.summary);
    expect(replay).toHaveBeenCalledExactlyOnceWith("exp_1", {
      scheduler: { type: "asha", reduction_factor: 4 },
      search: null,
      max_concurrent_trials: 8,
    });
  });

  it("calls only what is better better, in either direction", () => {
    const of = (replay: Replay, mode: "min" | "max") =>
      rowsOf(replay, { metric: "accuracy", mode, scope: "all" })
        .filter((row) => row.better)
        .map((row) => row.name);
    const worse = { ...REPLAY, replayed: { ...totals, reports: 3000, training_s: 90, best_value: 0.8 } };
    expect(of(worse, "max")).toEqual([]);
    expect(of(worse, "min")).toEqual(["Best accuracy"]);
    expect(of({ ...worse, replayed: { ...totals, duration_s: 20, best_value: 0.95 } }, "max")).toEqual([
      "From start to end",
      "Best accuracy",
    ]);
  });

  it("gives costs as lower bounds, and the result as unknown, if curves end too early", () => {
    const found = { ...REPLAY, censored: 2, replayed: { ...totals, reports: 1000, best_value: 0.95 } };
    const rows = rowsOf(found, { metric: "accuracy", mode: "max", scope: "all" });
    expect(rows.map((row) => row.after)).toEqual([
      "3",
      "at least 1,000",
      "at least 1 min",
      "at least 30 s",
      "not known; 0.95 where the records end",
      "not known; trial 1 where the records end",
    ]);
    expect(rows.some((row) => row.better)).toBe(false);
  });

  it("says that the best trial failed", () => {
    const trials = REPLAY.trials.map((one) =>
      one.number === 1 ? { ...one, replayed: { ...one.recorded, state: "failed" as const } } : one,
    );
    const rows = rowsOf({ ...REPLAY, trials }, { metric: "accuracy", mode: "max", scope: "all" });
    const best = rows.find((row) => row.name === "Best trial")!;
    expect([best.before, best.after]).toEqual(["trial 1", "trial 1, which failed"]);
  });

  it("reads options as JSON, or as text", () => {
    expect(optionsOf("reduction_factor=4, hard_stop=false, metric=loss,")).toEqual({
      reduction_factor: 4,
      hard_stop: false,
      metric: "loss",
    });
    expect(optionsOf("")).toEqual({});
  });
});
