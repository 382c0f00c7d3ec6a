import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import ComparePage from "./ComparePage";

afterEach(() => void vi.restoreAllMocks());

function show(x: string) {
  const trial = { experiment_id: "exp_1", state: "completed", params: {}, last: {}, segments: [] };
  vi.spyOn(api, "trial").mockImplementation((id) =>
    Promise.resolve({ ...trial, id, number: Number(id.slice(-1)) } as never),
  );
  const experiment = {
    id: "exp_1",
    metric: "loss",
    mode: "min",
    scope: "all",
    objectives: [{ metric: "loss", mode: "min" }],
    metrics: ["accuracy", "loss"],
    space: {},
    labels: {},
    scaling: {},
    scheduler: {},
  };
  vi.spyOn(api, "experiment").mockResolvedValue(experiment as never);
  vi.spyOn(api, "trialCurves").mockResolvedValue({ items: [] } as never);
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter initialEntries={[`/compare?trials=trl_1,trl_2&x=${x}`]}>
          <ComparePage />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
}

it("says that the trials' reports have no place on the axis", async () => {
  show("user_step");
  expect(
    await screen.findByText("No report of loss has a step. Pass it with tuner.report(metrics, step=...)."),
  ).toBeTruthy();
});

it("does not draw a metric over itself", async () => {
  show("metric:loss");
  expect(await screen.findByText("None of these trials has reported loss yet.")).toBeTruthy();
  const axis = screen.getByRole<HTMLInputElement>("combobox", { name: "Horizontal axis" });
  expect(axis.value).toBe("iteration");
  expect(vi.mocked(api.trialCurves).mock.calls.map(([, across]) => across.x)).not.toContain("metric");
});
