import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, render, screen } from "@testing-library/react";
import { createMemoryRouter, RouterProvider } from "react-router";
import { expect, it, vi } from "vitest";
import { api } from "../api/client";
import ExperimentPage from "./ExperimentPage";

const network = vi.hoisted(() => {
  let arrive = () => {};
  return { slow: new Promise<void>((done) => (arrive = done)), arrive: () => arrive() };
});
vi.mock("../parts/trial/TrialDrawer", async () => {
  await network.slow;
  return { default: ({ trial }: { trial: { number: number } }) => <p>the drawer of trial {trial.number}</p> };
});

it("shows at once which trial opens while the code of its drawer is loaded", async () => {
  const experiment = {
    id: "exp_1",
    name: "digits",
    state: "completed",
    metric: "loss",
    mode: "min",
    scope: "all",
    objectives: [{ metric: "loss", mode: "min" }],
    metrics: ["loss"],
    time_attr: "training_iteration",
    ...{ space: {}, labels: {}, scaling: {}, scheduler: {}, search: {}, limits: {}, tags: [], actions: [], best: null },
    counts: { pending: 0, running: 0, paused: 0, completed: 1, stopped: 0, failed: 0, cancelled: 0 },
    trials: 1,
    num_samples: 1,
    gpu_hours: 0,
    last_event_seq: 9,
    started_at: "2026-03-01T10:00:00Z",
    ended_at: "2026-03-01T11:00:00Z",
  };
  const trial = { id: "trl_0", experiment_id: "exp_1", number: 0, state: "completed", params: {}, last: { loss: 1 } };
  const items = [{ ...trial, iteration: 3, feasible: null }];
  vi.spyOn(api, "experiment").mockResolvedValue(experiment as never);
  vi.spyOn(api, "sample").mockResolvedValue({ items, ranks: [1], fronts: null, total: 1, trained: null } as never);
  vi.spyOn(api, "trials").mockResolvedValue({ items, total: 1, next_page_token: null, fronts: [] } as never);
  vi.spyOn(api, "decisions").mockResolvedValue({ items: [], next_page_token: null });
  vi.spyOn(api, "log").mockResolvedValue({ items: [], next_page_token: null });
  vi.spyOn(api, "timeline").mockResolvedValue({ totals: {} } as never);
  const router = createMemoryRouter([{ path: "/experiments/:id", element: <ExperimentPage /> }], {
    initialEntries: ["/experiments/exp_1?tab=events&trial=0"],
  });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false } } })}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  const opening = await screen.findByText("Trial 0", { selector: "[role=status] > b" });
  act(() => network.arrive());
  expect(await screen.findByText("the drawer of trial 0")).toBeTruthy();
  expect(opening.isConnected).toBe(false);
});
