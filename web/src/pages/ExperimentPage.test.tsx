import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { createMemoryRouter, RouterProvider } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api, ApiError } from "../api/client";
import ExperimentPage from "./ExperimentPage";

afterEach(() => void vi.restoreAllMocks());

/** Open an address of a service with these experiments. Return the router. */
function open(path: string, items: { id: string; name: string; archived_at?: string }[], more: typeof items = []) {
  vi.spyOn(api, "experiments").mockImplementation(({ page_token, archived }) => {
    const page = page_token ? { items: more } : { items, next_page_token: more.length ? "more" : null };
    return Promise.resolve({
      ...page,
      items: page.items.filter((one) => archived === "all" || !one.archived_at === (archived !== "yes")),
    } as never);
  });
  vi.spyOn(api, "experiment").mockImplementation((id) =>
    id === "exp_lr sweep"
      ? Promise.resolve({ id: "exp_1", name: id, state: "completed" } as never)
      : new Promise(() => {}),
  );
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
  await waitFor(() => expect(router.state.location.pathname).toBe("/experiments/exp_1"));
  await waitFor(() => expect(api.experiment).toHaveBeenCalledWith("exp_1", expect.anything()));
});

it("opens an experiment by its name although many newer names contain it", async () => {
  const router = open(
    "/experiments/digits",
    [{ id: "exp_2", name: "digits again" }],
    [{ id: "exp_1", name: "digits" }],
  );
  await waitFor(() => expect(router.state.location.pathname).toBe("/experiments/exp_1"));
});

it("keeps the choices of an address with a name", async () => {
  const router = open("/experiments/digits?trial=1&view=logs", [{ id: "exp_1", name: "digits" }]);
  await waitFor(() => expect(router.state.location.pathname).toBe("/experiments/exp_1"));
  expect(router.state.location.search).toBe("?trial=1&view=logs");
});

it("opens an experiment by a name that begins like an id", async () => {
  const router = open("/experiments/exp_lr%20sweep?tab=events", []);
  await waitFor(() => expect(router.state.location.pathname).toBe("/experiments/exp_1"));
  expect(router.state.location.search).toBe("?tab=events");
});

it("opens a trial that starts after the page has said that there is none", async () => {
  const { experiment, client } = openFront(3, 3000, 0, "?tab=events&trial=3000");
  vi.mocked(api.trials).mockResolvedValue({ items: [], total: 0, next_page_token: null, fronts: [] });
  const notice = await screen.findByText("There is no trial 3000");
  const started = { id: "trl_3000", number: 3000, state: "running", params: {}, last: {}, iteration: 0 };
  vi.mocked(api.trials).mockResolvedValue({ items: [started], total: 1, next_page_token: null, fronts: [] } as never);
  client.setQueryData(["experiment", "exp_1"], { ...experiment, trials: 3001 });
  await waitFor(() => expect(notice.isConnected).toBe(false));
  expect(api.trials).toHaveBeenCalledWith(
    "exp_1",
    expect.objectContaining({ where: ["number=3000"] }),
    expect.anything(),
  );
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

it("opens an archived experiment by its name, unless one that is not archived has it", async () => {
  const archived = { id: "exp_2", name: "digits", archived_at: "2026-01-02T03:04:05Z" };
  const router = open("/experiments/digits", [archived]);
  await waitFor(() => expect(router.state.location.pathname).toBe("/experiments/exp_2"));
  cleanup();
  const other = open("/experiments/digits", [archived, { id: "exp_1", name: "digits" }]);
  await waitFor(() => expect(other.state.location.pathname).toBe("/experiments/exp_1"));
});

it("lists archived experiments if only their names contain the text", async () => {
  const router = open("/experiments/digit", [{ id: "exp_2", name: "digits", archived_at: "2026-01-02T03:04:05Z" }]);
  expect(await screen.findByText("the list")).toBeTruthy();
  expect(router.state.location.search).toBe("?name=digit&archived=yes");
});

/** Open an experiment with two objectives of which the service returns `sampled` trials, all on the front, of `total` trials. */
function openFront(sampled: number, total: number, failed = 0, search = "?tab=events") {
  const counts = { pending: 0, running: 0, paused: 0, completed: total, stopped: 0, failed, cancelled: 0 };
  const experiment = {
    id: "exp_1",
    name: "digits",
    state: "completed",
    metric: "loss",
    mode: "min",
    scope: "all",
    objectives: [
      { metric: "loss", mode: "min" },
      { metric: "latency", mode: "min" },
    ],
    metrics: ["latency", "loss"],
    time_attr: "training_iteration",
    space: {},
    labels: {},
    scaling: {},
    scheduler: {},
    search: {},
    limits: {},
    tags: [],
    actions: ["edit"],
    best: null,
    counts,
    trials: total,
    num_samples: total,
    gpu_hours: 0,
    last_event_seq: 9,
    started_at: "2026-03-01T10:00:00Z",
    ended_at: "2026-03-01T11:00:00Z",
  };
  const items = Array.from({ length: sampled }, (_, number) => ({
    id: `trl_${number}`,
    experiment_id: "exp_1",
    number,
    state: "completed",
    params: {},
    last: { loss: number, latency: -number },
    iteration: 3,
    feasible: null,
  }));
  vi.spyOn(api, "experiment").mockResolvedValue(experiment as never);
  vi.spyOn(api, "sample").mockResolvedValue({
    items,
    ranks: items.map(() => 1),
    fronts: items.map(() => 1),
    total,
    trained: null,
  } as never);
  vi.spyOn(api, "trials").mockResolvedValue({ items, total, next_page_token: null, fronts: [] } as never);
  vi.spyOn(api, "decisions").mockResolvedValue({ items: [], next_page_token: null });
  vi.spyOn(api, "log").mockResolvedValue({ items: [], next_page_token: null });
  vi.spyOn(api, "timeline").mockResolvedValue({ totals: {} } as never);
  vi.spyOn(api, "hypervolume").mockResolvedValue({ metrics: [], x: [9], y: [0.75], front: 740, of: 2990 });
  const router = createMemoryRouter([{ path: "/experiments/:id", element: <ExperimentPage /> }], {
    initialEntries: [`/experiments/exp_1${search}`],
  });
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={client}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  return { experiment, client, router };
}

it("has the size of the front as the service counts it if there are more trials than the page reads", async () => {
  openFront(3, 3000);
  const size = await screen.findByText("740 trials", { selector: "header b" });
  expect(size.parentElement!.textContent).toBe("Pareto front740 trials");
});

it("counts the trials on the front itself if it has all of them", async () => {
  openFront(3, 3);
  await screen.findByText("0.75", { selector: "header b" });
  const size = await screen.findByText("3 trials", { selector: "header b" });
  expect(size.parentElement!.textContent).toBe("Pareto front3 trials");
});

it("says what the service cannot read in the spec of the experiment", async () => {
  const { experiment, client } = openFront(3, 3);
  await screen.findByRole("heading", { level: 1 });
  act(() => void client.setQueryData(["experiment", "exp_1"], { ...experiment, unreadable: "its spec has a moon." }));
  expect((await screen.findByText(/^its spec has a moon[.]$/)).getAttribute("role")).toBe("status");
});

it("says so if the experiment that is shown is deleted", async () => {
  const { client, experiment } = openFront(3, 3);
  await screen.findByText("digits", { selector: "h1" });
  vi.spyOn(api, "exactExperiment").mockResolvedValue({ ...experiment, notes: "", priority: 0 } as never);
  fireEvent.click(await screen.findByRole("button", { name: "More actions" }));
  fireEvent.click(await screen.findByText("Edit"));
  fireEvent.change(await screen.findByLabelText("Notes"), { target: { value: "an hour\nof typing" } });
  vi.mocked(api.experiment).mockRejectedValue(new ApiError(503, "starting"));
  await act(() => client.invalidateQueries({ queryKey: ["experiment", "exp_1"], exact: true }));
  expect(screen.getByText("digits", { selector: "h1" })).toBeTruthy();
  vi.mocked(api.experiment).mockRejectedValue(new ApiError(404, "There is no experiment exp_1."));
  await act(() => client.invalidateQueries({ queryKey: ["experiment", "exp_1"], exact: true }));
  expect(await screen.findByText("digits was deleted", { selector: "[role=alert] > h1" })).toBeTruthy();
  expect(screen.queryByText("digits")).toBeNull();
  expect(screen.queryByLabelText("Notes")).toBeNull();
  expect(screen.getByRole("region", { name: "What you typed" }).textContent).toBe(
    "notes: |-\n  an hour\n  of typing\n",
  );
  expect(document.title).toMatch(/^digits · deleted/);
});

it("says that the experiment was archived meanwhile, as in another tab", async () => {
  const { experiment, client } = openFront(3, 3);
  await screen.findByText("digits", { selector: "h1" });
  expect(screen.queryByText("archived")).toBeNull();
  act(() => void client.setQueryData(["experiment", "exp_1"], { ...experiment, archived_at: "2026-03-02T10:00:00Z" }));
  expect((await screen.findByText("archived")).title).toContain("Archived on");
});

it.each([
  [3, "99999", "The trials of this experiment are 0 to 2."],
  [3000, "99999", "The trials of this experiment are 0 to 2999."],
  [3000, "one", "The trials of this experiment are 0 to 2999."],
  [3000, "-1", "The trials of this experiment are 0 to 2999."],
])("says so if the experiment, with %i trials, has no trial %s", async (total, number, words) => {
  const { router } = openFront(3, total, 0, `?tab=events&trial=${number}`);
  vi.mocked(api.trials).mockRejectedValue(new ApiError(400, "The service need not be asked."));
  const notice = await screen.findByText(`There is no trial ${number}`);
  expect(screen.getByText(words)).toBeTruthy();
  act(() => screen.getByLabelText("Close").click());
  await waitFor(() => expect(notice.isConnected).toBe(false));
  expect(router.state.location.search).toBe("?tab=events");
});

it("names the first failed trial again if another one fails", async () => {
  const { experiment, client } = openFront(3, 3000, 1);
  const failed = (number: number) => ({
    items: [{ id: `trl_${number}`, number, state: "failed", params: {}, last: {}, reason: `of trial ${number}` }],
    fronts: [null],
  });
  vi.mocked(api.trials).mockResolvedValue(failed(2000) as never);
  await screen.findByText("of trial 2000");
  vi.mocked(api.trials).mockResolvedValue(failed(1500) as never);
  client.setQueryData(["experiment", "exp_1"], { ...experiment, counts: { ...experiment.counts, failed: 2 } });
  await screen.findByText("of trial 1500");
});
