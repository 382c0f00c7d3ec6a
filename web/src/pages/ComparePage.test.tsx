import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api, ApiError } from "../api/client";
import ComparePage from "./ComparePage";

afterEach(() => void vi.restoreAllMocks());

const gone = () => Promise.reject(new ApiError(404, "it is gone"));

function open(query: string): QueryClient {
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={client}>
        <MemoryRouter initialEntries={[`/compare?${query}`]}>
          <ComparePage />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  return client;
}

/** Open a comparison of trials. `own`: for each of them, what differs from the defaults; null for one that was deleted. */
function show(x: string, own: readonly (object | null)[] = [{}, {}]) {
  const trial = { experiment_id: "exp_1", state: "completed", params: {}, last: {}, segments: [] };
  vi.spyOn(api, "trial").mockImplementation((id) =>
    own[Number(id.slice(4)) - 1] === null
      ? gone()
      : Promise.resolve({ ...trial, ...own[Number(id.slice(4)) - 1], id, number: Number(id.slice(4)) } as never),
  );
  const experiment = {
    name: "digits",
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
  vi.spyOn(api, "experiment").mockImplementation((id) => Promise.resolve({ ...experiment, id } as never));
  vi.spyOn(api, "trialCurves").mockResolvedValue({ items: [] } as never);
  open(`trials=${own.map((_, i) => `trl_${i + 1}`).join()}&x=${x}`);
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

it("has the numbers of a group below each other at their decimal points", async () => {
  show("step", [
    { best_value: 0.3, last: { loss: 0.4, size: 15964.6 }, running_s: 12.3, reason: "3.5 of 4 epochs" },
    { best_value: -1.25e-7, last: { loss: 2, size: 31918.2 }, running_s: 0.8, reason: "" },
  ]);
  const texts = (name: string) =>
    [...screen.getByRole("rowheader", { name }).parentElement!.querySelectorAll("td > div")].map((cell) => {
      const number = cell.querySelector("span");
      return number ? [cell.textContent, number.style.paddingLeft] : cell.textContent;
    });
  await screen.findByRole("rowheader", { name: "best loss" });
  expect(texts("best loss")).toEqual([
    ["0.3", "4ch"],
    ["-1.25e-7 best", "3.4ch"],
  ]);
  expect(texts("last size")).toEqual([
    ["15964.6", "0ch"],
    ["31918.2", "0ch"],
  ]);
  expect(texts("trained for")).toEqual([
    ["12 s", "3ch"],
    ["0.8 s", "4ch"],
  ]);
  expect(texts("why")).toEqual(["3.5 of 4 epochs", "–"]);
});

it("tells a parameter whose value is null from one that a trial does not have", async () => {
  show("step", [{ params: { schedule: null } }, { params: { schedule: "cosine" } }, {}]);
  const row = (await screen.findByRole("rowheader", { name: "schedule" })).parentElement!;
  expect([...row.querySelectorAll("td")].map((cell) => cell.textContent)).toEqual(["null", "cosine", "not present"]);
});

it("calls the same trial the best one in the sentence and in the table if another one is outside the constraints", async () => {
  show("step", [
    { best_value: 0.3, feasible: true },
    { best_value: 0.2, feasible: true },
    { best_value: 0.1, feasible: false },
  ]);
  expect((await screen.findByText("Trial 2")).parentElement!.textContent).toMatch(
    /^Trial 2 has the best loss of 0\.2\./,
  );
  expect(screen.getByText("Outside the constraints, so not counted: trial 3.")).toBeTruthy();
  expect(screen.getAllByTitle("the best of them").map((one) => one.textContent)).toEqual(["0.2 best"]);
});

it("tells apart trials of experiments with the same name", async () => {
  show("step", [
    { experiment_id: "exp_000a1b2", best_value: 0.3 },
    { experiment_id: "exp_000c3d4", best_value: 0.2 },
    { experiment_id: "exp_000c3d4", best_value: 0.4 },
  ]);
  const verdict = await screen.findByText(/lower than that of/);
  expect(verdict.textContent).toMatch(
    /^digits \(c3d4\), trial 2 has .* that of digits \(a1b2\), trial 1, the next one/,
  );
});

it("follows trials while they train, and reads the curves once more after their end", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  try {
    show("step", [
      { state: "running", best_value: 0.5 },
      { state: "completed", best_value: 0.75 },
    ]);
    await screen.findByRole("rowheader", { name: "best loss" });
    expect(screen.getAllByText("running")).toBeTruthy();
    vi.mocked(api.trial).mockImplementation((id) =>
      Promise.resolve({
        id,
        number: Number(id.slice(-1)),
        experiment_id: "exp_1",
        state: "completed",
        params: {},
        last: {},
        segments: [],
        best_value: 0.25,
      } as never),
    );
    await act(() => vi.advanceTimersByTimeAsync(6000));
    expect(screen.queryByText("running")).toBeNull();
    const curvesRead = () => vi.mocked(api.trialCurves).mock.calls.filter(([id]) => id === "trl_1").length;
    await act(() => vi.advanceTimersByTimeAsync(10_000));
    const after = curvesRead();
    expect(after).toBeGreaterThan(1);
    await act(() => vi.advanceTimersByTimeAsync(30_000));
    expect(curvesRead()).toBe(after);
  } finally {
    vi.useRealTimers();
  }
});

it("compares the other trials if one was deleted and is left out", async () => {
  show("step", [{}, null, {}]);
  fireEvent.click(await screen.findByRole("button", { name: "Leave it out" }));
  expect(await screen.findByRole("columnheader", { name: /^trial 3/ })).toBeTruthy();
  expect(screen.queryByText("it is gone")).toBeNull();
});

it("compares the other experiments if one was deleted and is left out", async () => {
  vi.spyOn(api, "experiment").mockImplementation((id) => (id === "exp_2" ? gone() : new Promise(() => {})));
  open("experiments=exp_1,exp_2,exp_3");
  expect(await screen.findByText("it is gone")).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Leave it out" }));
  expect(screen.queryByText("it is gone")).toBeNull();
  expect(screen.getByRole("heading", { name: "Compare experiments" })).toBeTruthy();
});

it("says so if an experiment is deleted while it is compared", async () => {
  let deleted = false;
  const found = (id: string) => (deleted ? gone() : Promise.resolve({ id, name: "digits" } as never));
  vi.spyOn(api, "experiment").mockImplementation((id) => (id === "exp_2" ? found(id) : new Promise(() => {})));
  const client = open("experiments=exp_1,exp_2");
  await waitFor(() => expect(client.getQueryData(["experiment", "exp_2"])).toBeTruthy());
  deleted = true;
  await act(() => client.refetchQueries({ queryKey: ["experiment", "exp_2"] }));
  expect(await screen.findByText("it is gone")).toBeTruthy();
  expect(screen.getByText("digits was deleted")).toBeTruthy();
  expect(screen.getByRole("button", { name: "Leave it out" })).toBeTruthy();
});

it.each([
  ["a trial", "running"],
  ["an experiment whose trials have ended", "completed"],
])("says so if %s is deleted while it is compared, and asks for it no more", async (_, state) => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  try {
    show("step", [{}, { state, experiment_id: "exp_2" }, {}]);
    expect(await screen.findByRole("columnheader", { name: /^trial 2/ })).toBeTruthy();
    const found = vi.mocked(api.trial).getMockImplementation()!;
    vi.mocked(api.trial).mockImplementation((id) => (id === "trl_2" ? gone() : found(id)));
    const kept = vi.mocked(api.experiment).getMockImplementation()!;
    vi.mocked(api.experiment).mockImplementation((id) => (id === "exp_2" ? gone() : kept(id)));
    await act(() => vi.advanceTimersByTimeAsync(6000));
    expect(screen.getByText("it is gone")).toBeTruthy();
    expect(screen.getByText("Trial 2 of digits was deleted")).toBeTruthy();
    expect(screen.queryByRole("columnheader", { name: /^trial 2/ })).toBeNull();
    const asked = vi.mocked(api.trial).mock.calls.length;
    await act(() => vi.advanceTimersByTimeAsync(20_000));
    expect(vi.mocked(api.trial).mock.calls.length).toBe(asked);
    fireEvent.click(screen.getByRole("button", { name: "Leave it out" }));
    expect(await screen.findByRole("columnheader", { name: /^trial 3/ })).toBeTruthy();
    expect(screen.queryByText("it is gone")).toBeNull();
  } finally {
    vi.useRealTimers();
  }
});

it("says that only the first ten are compared, and lets the next one in if one is left out", async () => {
  show(
    "step",
    Array.from({ length: 12 }, () => ({})),
  );
  expect(await screen.findByText(/^These are the first 10 of 12 trials\./)).toBeTruthy();
  const names = () =>
    screen.getAllByRole("link").flatMap(({ textContent: text }) => (/^trial/.test(text) ? [text] : []));
  expect(names()).not.toContain("trial 11");
  fireEvent.click(screen.getByRole("button", { name: "Leave trial 2 out" }));
  expect(await screen.findByText(/^These are the first 10 of 11 trials\./)).toBeTruthy();
  await waitFor(() => expect(names()).toEqual([1, 3, 4, 5, 6, 7, 8, 9, 10, 11].map((n) => `trial ${n}`)));
});
