import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { Link, MemoryRouter, Route, Routes } from "react-router";
import { api } from "../api/client";
import { readClock } from "../api/clock";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Experiment } from "../api/types";
import { onlyWaits } from "./held";
import ExperimentsPage, { bestWords, isSorted, nextSort, sortChoices } from "./ExperimentsPage";

test("only a column can be sorted by", () => {
  for (const column of ["name", "-best", "duration"]) expect(isSorted(column)).toBe(true);
  for (const other of ["", "-", "toString", "constructor", "--best", "nam"]) expect(isSorted(other)).toBe(false);
});

test("a column is sorted in its usual order, then in the opposite one, then not at all", () => {
  expect(nextSort("name", "best")).toBe("-best");
  expect(nextSort("-best", "best")).toBe("best");
  expect(nextSort("best", "best")).toBe("");
});

test("the menu contains the present order, whichever it is", () => {
  const usual = sortChoices("");
  expect(usual).toHaveLength(7);
  expect(usual).toContainEqual({ value: "-best", label: "by best value, largest first" });
  expect(sortChoices("-best")).toEqual(usual);
  expect(sortChoices("best")).toContainEqual({ value: "best", label: "by best value, smallest first" });
  expect(sortChoices("-name")).toContainEqual({ value: "-name", label: "by name, Z to A" });
});

test("the list says that a running experiment only waits", () => {
  const of = (state: string, running: number, pending: number) =>
    onlyWaits({ state, counts: { running, pending } } as unknown as Experiment);
  expect(of("running", 0, 1)).toBe("1 trial waits");
  expect(of("running", 0, 12)).toBe("12 trials wait");
  expect([of("running", 1, 2), of("running", 0, 0), of("paused", 0, 2)]).toEqual(["", "", ""]);
});

test("the list says that the best value is a mean after repeats", () => {
  const best = (trials: number[] | null) =>
    ({ metric: "reward", best: { runs: trials && { trials } } }) as unknown as Experiment;
  const reward = { metric: "reward", mode: "max" as const };
  expect(bestWords(best([2, 41]), reward)).toBe("max reward, mean of 2 runs");
  expect(bestWords(best([2]), reward)).toBe("max reward, 1 run");
  expect(bestWords(best(null), reward)).toBe("max reward");
  expect(bestWords({ metric: "reward", best: null }, reward)).toBe("max reward");
  expect(bestWords(best([2, 41]), { metric: "length", mode: "min" })).toBe("min length");
});

beforeEach(() => void vi.spyOn(api, "session").mockReturnValue(new Promise(() => {})));
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  vi.useRealTimers();
  // Other files share this module: they would get the clock of the service that a test here had.
  readClock(new Response(null, { headers: { date: new Date().toUTCString() } }), Date.now());
});

/** An experiment of the list that has run for four seconds. `more`: what differs. */
function listed(id: string, more: object = {}): Experiment {
  return {
    id,
    name: id,
    state: "completed",
    project: "default",
    tags: { team: "vision" },
    actions: [],
    labels: {},
    best: null,
    metric: "loss",
    scope: "all",
    objectives: [{ metric: "loss", mode: "min" }],
    counts: { running: 0, pending: 0, paused: 0, completed: 1, stopped: 0, failed: 0, cancelled: 0 },
    trials: 1,
    num_samples: 1,
    scaling: { num_workers: 1, resources_per_worker: {} },
    method: "random",
    created_at: "2026-03-01T10:00:00Z",
    started_at: "2026-03-01T10:00:00Z",
    ended_at: "2026-03-01T10:00:04Z",
    paused_s: 0,
    paused_since: null,
    resolved: null,
    ...more,
  } as unknown as Experiment;
}

function show(address: string): void {
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter initialEntries={[address]}>
          <ExperimentsPage />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
}

test("the list counts times by the service's clock, also those of experiments that have ended", async () => {
  vi.useFakeTimers({ now: Date.parse("2026-03-01T09:55:00Z"), shouldAdvanceTime: true }); // five minutes behind the service
  const items = [
    listed("exp_1"),
    listed("exp_2", { state: "running", started_at: "2026-03-01T09:59:00Z", ended_at: null }),
  ];
  vi.stubGlobal("fetch", () => {
    const headers = { date: new Date(Date.now() + 300_000).toUTCString() };
    return Promise.resolve(new Response(JSON.stringify({ items, next_page_token: null }), { headers }));
  });
  show("/experiments?state=running");
  await screen.findByText("exp_2");
  vi.setSystemTime("2026-03-01T09:56:01Z");
  await act(() => vi.advanceTimersByTimeAsync(1000));
  const times = () => screen.getAllByRole("row").map((row) => row.lastElementChild!.textContent);
  expect(times().slice(1)).toEqual(["1 min ago4.0 s", expect.stringMatching(/^2 min ago2 min/)]);
  cleanup();
  items.pop();
  show("/experiments?state=completed");
  await screen.findByText("exp_1");
  vi.setSystemTime("2026-03-01T10:58:00Z");
  await act(() => vi.advanceTimersByTimeAsync(1000));
  expect(times().at(-1)).toBe("1 h ago4.0 s");
});

test("the list says what the service cannot read in the spec of an experiment", async () => {
  const unreadable =
    "this version of tuner does not accept the experiment's spec: space.lr.lower: a logarithmic domain";
  const items = [listed("exp_1", { unreadable, objectives: [] }), listed("exp_2")];
  vi.spyOn(api, "experiments").mockResolvedValue({ items, next_page_token: null });
  show("/experiments?state=completed");
  await screen.findByText("exp_2");
  const rows = screen.getAllByRole("row").map((row) => row.textContent);
  expect(rows.map((text) => text.includes(unreadable))).toEqual([false, true, false]);
});

test("a viewer is offered no new experiment", async () => {
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: "ada", role: "viewer" } as never);
  vi.spyOn(api, "experiments").mockResolvedValue({ items: [], next_page_token: null });
  const page = (address: string) => (
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter initialEntries={[address]}>
          <ExperimentsPage />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>
  );
  const { unmount } = render(page("/experiments?name=a"));
  await screen.findByText(/^No experiment matches/);
  await waitFor(() => expect(screen.queryByRole("link", { name: "New experiment" })).toBeNull());
  unmount();
  render(page("/experiments"));
  await screen.findByText(/needs the role editor/);
  expect(screen.queryByRole("link", { name: "fill in a form" })).toBeNull();
});

test("the field shows the name for which the address asks, and there are no first steps while it reads", async () => {
  let answer: (page: unknown) => void = () => {};
  const read = vi
    .spyOn(api, "experiments")
    .mockImplementation((query) =>
      query?.name
        ? Promise.resolve({ items: [], next_page_token: null } as never)
        : (new Promise((resolve) => (answer = resolve)) as never),
    );
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter initialEntries={["/experiments?name=foo"]}>
          <Link to="/experiments">all of them</Link>
          <Routes>
            <Route path="/experiments" element={<ExperimentsPage />} />
          </Routes>
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  const field = () => screen.getByLabelText<HTMLInputElement>("Filter by name");
  await waitFor(() => expect(read).toHaveBeenCalled());
  await waitFor(() => expect(field().value).toBe("foo"));
  await screen.findByText(/^No experiment/);
  fireEvent.click(screen.getByText("all of them"));
  await waitFor(() => expect(read.mock.calls.at(-1)![0]).not.toHaveProperty("name"));
  expect(field().value).toBe("");
  answer({ items: [], next_page_token: null });
});

test("two filters that are chosen one right after the other both apply", async () => {
  const items = [listed("exp_1"), listed("exp_2", { project: "audio" })];
  const read = vi.spyOn(api, "experiments").mockResolvedValue({ items, next_page_token: null });
  show("/experiments");
  const label = (await screen.findAllByRole("button", { name: "Only label team=vision" }))[0]!;
  act(() => {
    label.click();
    screen.getByRole("button", { name: "Only project audio" }).click();
  });
  await screen.findByRole("button", { name: "Remove the filter project audio" });
  await screen.findByRole("button", { name: "Remove the filter label team=vision" });
  expect(read.mock.lastCall![0]).toMatchObject({ tag: ["team=vision"], project: "audio" });
});

test("an experiment that is on two pages, since it has moved meanwhile, is listed once", async () => {
  vi.spyOn(api, "experiments").mockImplementation((query) =>
    Promise.resolve(
      query.page_token
        ? { items: [listed("exp_1"), listed("exp_3")], next_page_token: null }
        : { items: [listed("exp_1"), listed("exp_2")], next_page_token: "2" },
    ),
  );
  show("/experiments?sort=trials");
  fireEvent.click(await screen.findByRole("button", { name: "More experiments" }));
  await screen.findByText("exp_3");
  expect(screen.getAllByText(/^exp_\d$/).map((one) => one.textContent)).toEqual(["exp_1", "exp_2", "exp_3"]);
});

test("a name that is longer than the service searches for is cut", async () => {
  const read = vi.spyOn(api, "experiments").mockResolvedValue({ items: [], next_page_token: null });
  show(`/experiments?name=${"a".repeat(300)}`);
  await waitFor(() => expect(read.mock.lastCall?.[0].name).toBe("a".repeat(200)));
  expect(screen.getByLabelText<HTMLInputElement>("Filter by name").maxLength).toBe(200);
});
