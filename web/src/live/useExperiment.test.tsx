import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, renderHook, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api } from "../api/client";
import type { Changes, Experiment } from "../api/types";
import { keys, useExperiment } from "./useExperiment";

let send: (changes: Partial<Changes>) => void;

class Source {
  static readonly CLOSED = 2;
  readyState = 1;
  addEventListener(_: string, listener: (message: MessageEvent<string>) => void): void {
    const empty = { since: 0, reset: false, trials: [], segments: [], decisions: [], points: [], best: [] };
    send = (changes) =>
      listener(new MessageEvent("changes", { data: JSON.stringify({ ...empty, experiment: null, ...changes }) }));
  }
  close(): void {}
}

const row = (state: string, last_event_seq: number, revision = 0) =>
  ({ id: "exp_1", state, last_event_seq, revision, started_at: "2026-03-01T10:00:00Z" }) as unknown as Experiment;

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

/** Show a running experiment. */
async function opened() {
  vi.stubGlobal("EventSource", Source);
  const read = vi.spyOn(api, "experiment").mockResolvedValue(row("running", 10));
  vi.spyOn(api, "sample").mockResolvedValue({ items: [], ranks: [], fronts: [], total: 0, trained: null });
  vi.spyOn(api, "decisions").mockResolvedValue({ items: [], next_page_token: null });
  const client = new QueryClient();
  const wrapper = ({ children }: { children: ReactNode }) => (
    <QueryClientProvider client={client}>{children}</QueryClientProvider>
  );
  const { result } = renderHook(() => useExperiment("exp_1"), { wrapper });
  await waitFor(() => expect(result.current.trials.data).toBeDefined());
  const state = () => client.getQueryData<Experiment>(keys.experiment("exp_1"))!.state;
  const answer = (experiment: Experiment) => void act(() => client.setQueryData(keys.experiment("exp_1"), experiment));
  const wait = (ms: number) => act(() => new Promise((resolve) => setTimeout(resolve, ms)));
  return { read, state, answer, wait };
}

describe("an open experiment", () => {
  it("keeps the answer of an action that came while changes were held back", async () => {
    const { state, answer, wait } = await opened();
    void act(() => send({ seq: 11, experiment: row("running", 11) }));
    await wait(150); // the first change is shown at once, and the next ones of its lists later
    void act(() => send({ since: 11, seq: 12, experiment: row("running", 12) }));
    await wait(150);
    answer(row("paused", 12));
    await wait(700);
    expect(state()).toBe("paused");
  });

  it("does not go back to an earlier state after it has ended", async () => {
    const { read, state, answer, wait } = await opened();
    void act(() => send({ seq: 11, experiment: row("running", 11) }));
    await wait(150);
    void act(() => send({ since: 11, seq: 12, experiment: row("running", 12) }));
    await wait(150);
    read.mockReturnValue(new Promise(() => {})); // the last reading has no answer yet
    answer(row("completed", 20));
    await wait(50);
    expect(state()).toBe("completed");
  });

  it("ignores a change that is older than an answer", async () => {
    const { state, answer, wait } = await opened();
    answer(row("paused", 15));
    void act(() => send({ seq: 12, experiment: row("running", 12) }));
    await wait(150);
    expect(state()).toBe("paused");
    void act(() => send({ since: 12, seq: 16, experiment: row("running", 16) }));
    await wait(150);
    expect(state()).toBe("running");
  });
});
