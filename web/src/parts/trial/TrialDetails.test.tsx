import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api, ApiError } from "../../api/client";
import type { Experiment } from "../../api/types";
import { TrialDetails } from "./TrialDetails";

afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const TRIAL = {
  id: "trl_1",
  experiment_id: "exp_1",
  number: 4,
  state: "completed",
  params: {},
  best_params: {},
  feasible: null,
  repeat_of: null,
  best_iteration: null,
  tags: {},
  last: {},
  segments: [],
};
const EXPERIMENT = {
  id: "exp_1",
  metric: "loss",
  objectives: [{}],
  labels: {},
  space: {},
  time_attr: "training_iteration",
};
const SAVED = { id: "ckpt_1", step: 9, bytes: 2000, state: "ready", segment: 1, uri: "file:///a" };

/** Show the trial with this tab. */
function open(view: string) {
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>
          <TrialDetails
            id="trl_1"
            experiment={EXPERIMENT as unknown as Experiment}
            rank={1}
            of={1}
            onSelect={() => {}}
            address={{ get: (name) => (name === "view" ? view : null), set: () => {} }}
          />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
}

it.each([
  ["viewer", []],
  ["editor", ["Fork", "Pin", "Profile"]],
])("offers the role %s only what it allows", async (role, offered) => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: "ada", role } as never);
  vi.spyOn(api, "trial").mockResolvedValue(TRIAL as never);
  const saved = { ...SAVED, pinned: false, actions: ["fork", "pin"] };
  const checkpoints = vi.spyOn(api, "checkpoints").mockResolvedValue([saved] as never);
  open("checkpoints");
  await screen.findByText("Iteration 9");
  expect(screen.getByRole("tablist", { name: "Views of this trial" })).toBeTruthy();
  const names = () =>
    [...screen.queryAllByRole("button"), ...screen.queryAllByRole("tab")]
      .map((one) => one.textContent)
      .filter((name) => ["Fork", "Pin", "Profile"].includes(name));
  await waitFor(() => expect(names()).toEqual(offered));
  expect(screen.queryAllByRole("button", { name: "Pin iteration 9" })).toHaveLength(offered.includes("Pin") ? 1 : 0);
  // The trial has ended, but somebody else may still pin its checkpoints.
  checkpoints.mockResolvedValue([{ ...saved, pinned: true, actions: ["fork", "unpin"] }] as never);
  await act(() => vi.advanceTimersByTimeAsync(5_000));
  await screen.findByText(/pinned: the policy does not delete it/);
  const refused = "the files of ckp_1 cannot be read here; node n2 wrote it";
  vi.spyOn(api, "tryDownload").mockRejectedValueOnce(new ApiError(409, refused)).mockResolvedValue(null);
  const clicked = vi.spyOn(HTMLAnchorElement.prototype, "click").mockReturnValue();
  const download = screen.getByRole("link", { name: "Download iteration 9" });
  expect(fireEvent.click(download)).toBe(false);
  await screen.findByText(refused);
  expect(clicked).not.toHaveBeenCalled();
  fireEvent.click(download);
  await waitFor(() => expect(clicked).toHaveBeenCalledTimes(1));
  expect(screen.queryByText(refused)).toBeNull();
  expect(fireEvent.click(download, { ctrlKey: true })).toBe(true);
});

it("reads older decisions of a trial that has many", async () => {
  vi.spyOn(api, "session").mockResolvedValue({ required: false, name: "local", role: "admin" } as never);
  vi.spyOn(api, "trial").mockResolvedValue(TRIAL as never);
  const decision = { kind: "pause", trial_number: 4, time: "2026-01-02T03:04:05Z", state: "carried_out", payload: {} };
  vi.spyOn(api, "decisions").mockImplementation(
    (_, { page_token }) =>
      Promise.resolve(
        page_token === "older"
          ? { items: [{ ...decision, seq: 1, reason: "the first" }], next_page_token: null }
          : { items: [{ ...decision, seq: 2, reason: "the newest" }], next_page_token: "older" },
      ) as never,
  );
  open("decisions");
  fireEvent.click(await screen.findByRole("button", { name: "Older decisions" }));
  await waitFor(() => expect(screen.queryByRole("button", { name: "Older decisions" })).toBeNull());
  expect(api.decisions).toHaveBeenCalledTimes(2);
});

it.each([
  [8, "Stopped at iteration 7: loss is nan. It had gone on to iteration 8 before it was told."],
  [7, "Stopped at iteration 7: loss is nan"],
])("says that a trial went on before it was told to stop", async (iteration, words) => {
  const stopped = { ...TRIAL, state: "stopped", iteration, reason: "stopped at iteration 7: loss is nan" };
  vi.spyOn(api, "trial").mockResolvedValue(stopped as never);
  open("overview");
  const reason = (await screen.findByText("Stopped")).parentElement!;
  expect(reason.textContent).toBe(words);
});
