import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, fireEvent, render, screen } from "@testing-library/react";
import { createMemoryRouter, RouterProvider } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import TrialPage from "./TrialPage";

const OBJECTIVES = [
  { metric: "accuracy", mode: "max" },
  { metric: "latency", mode: "min" },
];
const ITEMS = [
  [0.9, 3],
  [0.8, 9],
  [0.7, 1],
].map(([accuracy, latency], number) => ({ number, best_value: accuracy, feasible: null, last: { accuracy, latency } }));
const LIVE = {
  experiment: { data: { id: "exp_1", name: "digits", mode: "max", best: null, objectives: OBJECTIVES } },
  trials: { data: { items: ITEMS, places: null } },
};
vi.mock("../live/useExperiment", async (original) => ({ ...(await original<object>()), useExperiment: () => LIVE }));
vi.mock("../parts/trial/TrialDetails", async () => {
  const { useState } = await import("react");
  return {
    TrialTitle: () => null,
    // What it keeps, such as a profile, belongs to one trial.
    TrialDetails: ({ id, rank, of }: { id: string; rank: number; of: number }) => {
      const [kept, keep] = useState("nothing");
      return (
        <>
          <button onClick={() => keep(id)}>{`${id} keeps ${kept}`}</button>
          <p>{`place ${rank} of ${of}`}</p>
        </>
      );
    },
  };
});

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

function open(path: string, client = new QueryClient()) {
  vi.spyOn(api, "trial").mockImplementation((id) =>
    Promise.resolve({ id, experiment_id: "exp_1", number: Number(id.slice(4)), state: "completed" } as never),
  );
  const router = createMemoryRouter([{ path: "/trials/:id", element: <TrialPage /> }], { initialEntries: [path] });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  return router;
}

it("shows nothing of one trial under another", async () => {
  const client = new QueryClient();
  client.setQueryData(["trial", "trl_1"], { id: "trl_1", experiment_id: "exp_1", number: 1, state: "completed" });
  const router = open("/trials/trl_2", client);
  fireEvent.click(await screen.findByText("trl_2 keeps nothing"));
  expect(screen.getByText("trl_2 keeps trl_2")).toBeTruthy();
  await act(() => router.navigate("/trials/trl_1"));
  expect(await screen.findByText("trl_1 keeps nothing")).toBeTruthy();
});

it("ranks a trial with several objectives by front, as the experiment's page does", async () => {
  open("/trials/trl_2");
  await screen.findByText("place 1 of 3");
});

it("keeps what is open if its experiment cannot be read again, as after the end of a session", async () => {
  Object.assign(LIVE.experiment, { isError: true, error: new Error("a token is needed") });
  open("/trials/trl_1");
  fireEvent.click(await screen.findByText("trl_1 keeps nothing"));
  expect(await screen.findByText("trl_1 keeps trl_1")).toBeTruthy();
});
