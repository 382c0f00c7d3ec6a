import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { createMemoryRouter, RouterProvider } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import ExperimentPage from "./ExperimentPage";

afterEach(() => void vi.restoreAllMocks());

/** Open an address of a service with these experiments. Return the router. */
function open(path: string, items: { id: string; name: string }[]) {
  vi.spyOn(api, "experiments").mockResolvedValue({ items, next_page_token: null } as never);
  vi.spyOn(api, "experiment").mockReturnValue(new Promise(() => {}));
  const list = { path: "/experiments", element: <p>the list</p> };
  const router = createMemoryRouter([{ path: "/experiments/:id", element: <ExperimentPage /> }, list], {
    initialEntries: [path],
  });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  return router;
}

it("opens an experiment by its name", async () => {
  const router = open("/experiments/digits", [
    { id: "exp_2", name: "digits again" },
    { id: "exp_1", name: "digits" },
  ]);
  await vi.waitFor(() => expect(router.state.location.pathname).toBe("/experiments/exp_1"));
  await vi.waitFor(() => expect(api.experiment).toHaveBeenCalledWith("exp_1", expect.anything()));
});

it("keeps the choices of an address with a name", async () => {
  const router = open("/experiments/digits?trial=1&view=logs", [{ id: "exp_1", name: "digits" }]);
  await vi.waitFor(() => expect(router.state.location.pathname).toBe("/experiments/exp_1"));
  expect(router.state.location.search).toBe("?trial=1&view=logs");
});

it("lists the experiments if several have the name", async () => {
  const router = open("/experiments/my%20digits", [
    { id: "exp_2", name: "my digits" },
    { id: "exp_1", name: "my digits" },
  ]);
  expect(await screen.findByText("the list")).toBeTruthy();
  expect(router.state.location.search).toBe("?name=my%20digits");
  expect(api.experiment).not.toHaveBeenCalled();
});
