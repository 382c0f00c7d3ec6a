import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen } from "@testing-library/react";
import { createMemoryRouter, RouterProvider } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import TrialPage from "./TrialPage";

const LIVE = {
  experiment: { data: { id: "exp_1", name: "digits", mode: "max" } },
  trials: { data: { items: [], places: new Map() } },
};
vi.mock("../live/useExperiment", async (original) => ({ ...(await original<object>()), useExperiment: () => LIVE }));
vi.mock("../parts/trial/TrialDetails", async () => {
  const { useState } = await import("react");
  return {
    TrialTitle: () => null,
    // What it keeps, such as a profile, belongs to one trial.
    TrialDetails: ({ id }: { id: string }) => {
      const [kept, keep] = useState("nothing");
      return <button onClick={() => keep(id)}>{`${id} keeps ${kept}`}</button>;
    },
  };
});

afterEach(() => void vi.restoreAllMocks());

it("shows nothing of one trial under another", async () => {
  vi.spyOn(api, "trial").mockImplementation((id) =>
    Promise.resolve({ id, experiment_id: "exp_1", number: 1, state: "completed" } as never),
  );
  const router = createMemoryRouter([{ path: "/trials/:id", element: <TrialPage /> }], {
    initialEntries: ["/trials/trl_2"],
  });
  const client = new QueryClient();
  client.setQueryData(["trial", "trl_1"], { id: "trl_1", experiment_id: "exp_1", number: 1, state: "completed" });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  fireEvent.click(await screen.findByText("trl_2 keeps nothing"));
  expect(screen.getByText("trl_2 keeps trl_2")).toBeTruthy();
  await act(() => router.navigate("/trials/trl_1"));
  expect(await screen.findByText("trl_1 keeps nothing")).toBeTruthy();
});
