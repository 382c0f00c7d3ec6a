import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment, Neighbors as Found, TrialWithSegments } from "../../api/types";
import { Neighbors, summary } from "./Neighbors";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

const TRIAL = { id: "trl_1", number: 1, state: "completed", best_value: 0.9, iteration: 9 } as TrialWithSegments;
const EXPERIMENT = {
  metric: "accuracy",
  mode: "max",
  scope: "all",
  labels: { act: ["relu", "tanh"], layers: ["[8, 8]", null] },
} as unknown as Experiment;

function near(trial_number: number, best_value: number | null, distance = 0.1): Found["items"][number] {
  const changes = {
    lr: { before: 0.1, after: 0.2 },
    act: { before: 0, after: 1 },
    layers: { before: 0, after: 1 },
    beta: { before: 0.5, after: null },
  };
  return {
    trial_id: `trl_${trial_number}`,
    trial_number,
    state: "stopped",
    distance,
    best_value,
    iteration: 9,
    changes,
  };
}

describe("the neighbors of a trial", () => {
  it("say if they were trained for less", () => {
    const said = (iteration: number, ...values: number[]) =>
      summary(
        { best_value: 0.9, iteration },
        values.map((value, i) => ({ ...near(i, value), iteration: i })),
        {
          metric: "accuracy",
          mode: "max",
          scope: "all",
        },
      );
    expect(said(1, 0.8, 0.95)).toMatch(/better than 1 of them. 1 of them was trained for fewer iterations.$/);
    expect(said(27, 0.8, 0.95)).toMatch(/of them. They were trained for fewer iterations.$/);
    expect(said(0, 0.8, 0.95)).toMatch(/better than 1 of them.$/);
  });

  it("say how good the region around the trial is", () => {
    const said = (values: (number | null)[], own: number | null, mode: "min" | "max" = "max") =>
      summary(
        { best_value: own, iteration: 9 },
        values.map((value, i) => near(i, value)),
        { metric: "accuracy", mode, scope: "all" },
      );
    expect(said([0.8, 0.95, 0.85], 0.9)).toBe(
      "Its 3 nearest neighbors reached a best accuracy of 0.8 to 0.95; this trial, with 0.9, is better than 2 of them.",
    );
    expect(said([0.8, 0.95, 0.85], 0.9, "min")).toMatch(/better than 1 of them/);
    expect(said([0.8, null], 0.9)).toMatch(
      /^Its nearest neighbor with a result reached a best accuracy of 0.8; .* all of them/,
    );
    expect(said([0.95, 0.96], 0.9)).toMatch(/better than none of them/);
    expect(said([null], 0.9)).toBe("None of its nearest neighbors has a result yet.");
    expect(said([0.8, 0.9], null)).toMatch(/this trial has no result yet/);
  });

  it("are shown in a table with the differences, with links to the trials", async () => {
    vi.spyOn(api, "neighbors").mockResolvedValue({
      trial_id: "trl_1",
      trial_number: 1,
      items: [near(4, 0.95, 0.0123), near(6, null, 0.4)],
      left_out: 12_000,
    });
    const onSelect = vi.fn();
    render(
      <MantineProvider>
        <QueryClientProvider client={new QueryClient()}>
          <Neighbors trial={TRIAL} experiment={EXPERIMENT} onSelect={onSelect} />
        </QueryClientProvider>
      </MantineProvider>,
    );
    const rows = (await screen.findAllByRole("row")).map((row) => row.textContent);
    expect(rows[1]).toBe("4 stopped1.2 %0.95 (+0.05)9lr=0.2, act=tanh, layers=null, beta=not present");
    expect(rows[2]).toContain("40 %–9");
    expect(screen.getByText("12,000 trials were not compared.")).toBeTruthy();
    fireEvent.click(screen.getByRole("button", { name: "4" }));
    expect(onSelect).toHaveBeenCalledWith(4);
  });
});
