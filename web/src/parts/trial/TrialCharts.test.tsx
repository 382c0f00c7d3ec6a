import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { TrialWithSegments } from "../../api/types";
import { STEP, type Across } from "../../curves/across";
import type { Address } from "../../pages/useAddress";
import { waitingWords } from "../curves/CurvesPanel";
import { TrialCharts } from "./TrialCharts";

vi.mock("../../curves/plot", () => ({
  CurvesPlot: class {
    setLook() {}
    setZoom() {}
    setData() {}
    resize() {}
    destroy() {}
  },
}));

afterEach(() => void vi.restoreAllMocks());

const TRIAL = { id: "trl_1", number: 4, state: "completed", segments: [] } as unknown as TrialWithSegments;
const USER_STEP: Across = { x: "user_step", x_metric: null };
const ADDRESS: Address = { get: () => null, set: () => {} };
const NO_STEP = "No report of loss has a step. Pass it with tuner.report(metrics, step=...).";

it("shows the charts of a trial over iterations if no report has a step", async () => {
  const segments = [{ ordinal: 1, cause: "start", last_iteration: 2, x: [1, 2], y: [0.5, 0.25] }];
  vi.spyOn(api, "trialCurves").mockImplementation((_, across) =>
    Promise.resolve({ ...across, items: across.x === "step" ? [{ metric: "loss", segments }] : [] } as never),
  );
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <TrialCharts trial={TRIAL} metric="loss" across={USER_STEP} rank={1} of={1} address={ADDRESS} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  expect(await screen.findByRole("img", { name: /^loss of trial 4 over training iteration, last/ })).toBeTruthy();
  expect(screen.getByText(NO_STEP)).toBeTruthy();
});

it("has a linear axis if no value is positive, whatever the address says", async () => {
  const segments = [{ ordinal: 1, cause: "start", last_iteration: 2, x: [1, 2], y: [-0.5, -0.25] }];
  vi.spyOn(api, "trialCurves").mockResolvedValue({ items: [{ metric: "loss", segments }] } as never);
  const address: Address = { get: (name) => (name === "charts" ? '{"loss": ["log"]}' : null), set: () => {} };
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <TrialCharts trial={TRIAL} metric="loss" across={STEP} rank={1} of={1} address={address} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  const button = await screen.findByRole<HTMLButtonElement>("button", { name: "log" });
  expect([button.disabled, button.getAttribute("aria-pressed")]).toEqual([true, "false"]);
});

it("shows everything after a change of the scale, since a log axis cannot show the values below 0 of a zoomed part", async () => {
  const segments = [{ ordinal: 1, cause: "start", last_iteration: 2, x: [1, 2], y: [0.5, 0.25] }];
  vi.spyOn(api, "trialCurves").mockResolvedValue({ items: [{ metric: "loss", segments }] } as never);
  let charts: string | null = '{"loss": ["", "step", "1,2,-0.05,0.6"]}';
  const address: Address = {
    get: () => charts,
    set: (changes) => void (charts = (typeof changes === "function" ? changes(() => charts) : changes)["charts"]!),
  };
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <TrialCharts trial={TRIAL} metric="loss" across={STEP} rank={1} of={1} address={address} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  fireEvent.click(await screen.findByRole("button", { name: "log" }));
  expect(charts).toBe('{"loss":["log"]}');
});

it("says of an empty chart whether the metric or its value on the axis is missing", () => {
  const experiment = { metrics: ["loss"], state: "running" as const, trials: 2 };
  expect(waitingWords(experiment, USER_STEP, "loss")).toBe(NO_STEP);
  expect(waitingWords(experiment, USER_STEP, "accuracy")).toBe("No trial has reported accuracy yet.");
  expect(waitingWords({ ...experiment, metrics: [] }, USER_STEP, "loss")).toMatch(/^Waiting for the first report/);
});
