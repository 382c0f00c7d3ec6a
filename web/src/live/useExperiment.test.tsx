import { focusManager, QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { act, renderHook, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api, ApiError } from "../api/client";
import type { Changes, Curves, Decision, Experiment, Series, Trial } from "../api/types";
import { STEP } from "../curves/across";
import {
  keys,
  readOlderDecisions,
  useCurves,
  useExperiment,
  useRows,
  withEveryReport,
  type Decisions,
} from "./useExperiment";

let send: (changes: Partial<Changes>) => void;
let refuse: () => void;

class Source {
  static readonly OPEN = 1;
  static readonly CLOSED = 2;
  static readonly opened: string[] = [];
  readyState = 1;
  onerror: (() => void) | null = null;
  constructor(url: string) {
    Source.opened.push(url);
    refuse = () => {
      this.readyState = Source.CLOSED;
      this.onerror?.();
    };
  }
  addEventListener(_: string, listener: (message: MessageEvent<string>) => void): void {
    const empty = { since: 0, reset: false, trials: [], segments: [], decisions: [], points: [], best: [] };
    send = (changes) =>
      listener(new MessageEvent("changes", { data: JSON.stringify({ ...empty, experiment: null, ...changes }) }));
  }
  close(): void {}
}

const row = (state: string, last_event_seq: number, revision = 0) =>
  ({
    id: "exp_1",
    state,
    last_event_seq,
    revision,
    started_at: "2026-03-01T10:00:00Z",
    objectives: [],
  }) as unknown as Experiment;

// On a busy machine, a real timer may run long after its time, and what it starts after the test has looked.
beforeEach(() => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
});

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

/** Show an experiment, a running one unless told otherwise. */
async function opened(state = "running", last_event_seq = 10, client = new QueryClient()) {
  vi.stubGlobal("EventSource", Source);
  const read = vi.spyOn(api, "experiment").mockResolvedValue(row(state, last_event_seq));
  vi.spyOn(api, "sample").mockResolvedValue({ items: [], ranks: [], fronts: [], total: 0, trained: null });
  vi.spyOn(api, "decisions").mockResolvedValue({ items: [], next_page_token: null });
  const wrapper = ({ children }: { children: ReactNode }) => (
    <QueryClientProvider client={client}>{children}</QueryClientProvider>
  );
  const rendered = vi.fn();
  const { result } = renderHook(
    () => {
      rendered();
      return useExperiment("exp_1");
    },
    { wrapper },
  );
  await waitFor(() => expect(result.current.trials.data).toBeDefined());
  const stateNow = () => client.getQueryData<Experiment>(keys.experiment("exp_1"))!.state;
  const answer = (experiment: Experiment) => void act(() => client.setQueryData(keys.experiment("exp_1"), experiment));
  /** Watch the answer to a request about the trial, as an open panel does. */
  const watch = (queryKey: readonly unknown[], queryFn: () => Promise<unknown>, staleTime = 0) =>
    renderHook(() => useQuery({ queryKey, queryFn, staleTime }), { wrapper });
  const wait = (ms: number) => act(() => vi.advanceTimersByTimeAsync(ms));
  return { client, read, rendered, result, state: stateNow, answer, wait, watch };
}

const trial = (state: string) => ({ id: "trl_1", number: 1, state, experiment_id: "exp_1" }) as unknown as Trial;

const DECISION = { seq: 11, trial_id: "trl_1", trial_number: 1, kind: "stop" } as unknown as Decision;

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

  it("does not go back to an earlier state if an answer comes later than a change that is newer", async () => {
    const { client, read, state, wait } = await opened();
    let answer = (_: Experiment) => {};
    read.mockReturnValue(new Promise((resolve) => (answer = resolve)));
    const asked = client.refetchQueries({ queryKey: keys.experiment("exp_1"), exact: true });
    void act(() => send({ seq: 11, experiment: row("paused", 11) }));
    await wait(150);
    expect(state()).toBe("paused");
    answer(row("running", 10));
    await act(() => asked);
    expect(state()).toBe("paused");
  });

  it("is asked for at once if its stream is refused, as after a session has ended", async () => {
    const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
    const { read, result, wait } = await opened("running", 10, client);
    read.mockRejectedValue(new ApiError(401, "a token is needed"));
    await wait(8000);
    void act(() => send({ seq: 11, experiment: row("running", 11) })); // starts the time between two polls anew
    await wait(150);
    act(() => refuse());
    await wait(100);
    expect(result.current.experiment.error).toBeInstanceOf(ApiError);
  });

  it("goes back to the state in a backup that was restored", async () => {
    const { client, read, state } = await opened("paused", 30);
    read.mockResolvedValue(row("running", 10));
    await act(() => client.refetchQueries({ queryKey: keys.experiment("exp_1"), exact: true }));
    expect(state()).toBe("running");
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

  it("is shown as running again if somebody continues it, with all that was logged since its end", async () => {
    const { read, state, answer } = await opened();
    read.mockResolvedValue(row("completed", 20));
    answer(row("completed", 20));
    await act(() => vi.advanceTimersByTimeAsync(100));
    answer(row("completed", 20)); // the answer to the request, before a driver takes it up
    read.mockResolvedValue(row("running", 31));
    await act(() => vi.advanceTimersByTimeAsync(4000));
    expect(state()).toBe("running");
    expect(Source.opened.at(-1)).toMatch(/\b20$/);
  });

  it("follows it from its end on if it had ended when the page was opened", async () => {
    const before = Source.opened.length;
    const { client, read, result } = await opened("completed", 20);
    read.mockResolvedValue(row("running", 31));
    await act(() => vi.advanceTimersByTimeAsync(4000));
    expect(client.getQueryData<Experiment>(keys.experiment("exp_1"))!.state).toBe("running");
    expect(result.current.experiment.data!.state).toBe("running");
    expect(Source.opened.slice(before)).toHaveLength(1);
    expect(Source.opened.at(-1)).toMatch(/\b20$/);
  });

  it("knows the newest event if a change has no row of the experiment", async () => {
    const { client, wait } = await opened();
    void act(() => send({ since: 10, seq: 11 }));
    await wait(150);
    expect(client.getQueryData<Experiment>(keys.experiment("exp_1"))!.last_event_seq).toBe(11);
  });

  it("opens another stream if the experiment continues, but its stream is silent", async () => {
    const { read } = await opened();
    const before = Source.opened.length;
    read.mockResolvedValue(row("running", 25));
    await act(() => vi.advanceTimersByTimeAsync(11_000));
    expect(Source.opened).toHaveLength(before);
    await act(() => vi.advanceTimersByTimeAsync(10_000));
    expect(Source.opened.slice(before)).toEqual([expect.stringMatching(/after=10$/)]);
  });

  it("is not rendered again when it is read and nothing has changed", async () => {
    for (const state of ["completed", "running"]) {
      const { read, rendered, wait } = await opened(state);
      await wait(500);
      const [reads, renders] = [read.mock.calls.length, rendered.mock.calls.length];
      await wait(21_000);
      expect(read.mock.calls.length).toBeGreaterThan(reads + 1);
      expect(rendered).toHaveBeenCalledTimes(renders);
    }
  });

  it("reads the charts of an open trial once more when the trial ends", async () => {
    const { wait, watch } = await opened();
    const curves = vi.fn(() => Promise.resolve([]));
    watch(keys.trial("trl_1"), () => Promise.resolve(trial("running")));
    watch(keys.trialCurves("trl_1", STEP), curves);
    await waitFor(() => expect(curves).toHaveBeenCalledTimes(1));
    void act(() => send({ since: 10, seq: 11, trials: [trial("running")] }));
    await wait(700);
    expect(curves).toHaveBeenCalledTimes(1);
    void act(() => send({ since: 11, seq: 12, trials: [trial("completed")] }));
    await wait(700);
    expect(curves).toHaveBeenCalledTimes(2);
  });

  it("reads the checkpoints of an open trial again if they change after its end", async () => {
    const { wait, watch } = await opened();
    const checkpoints = vi.fn(() => Promise.resolve([]));
    watch(keys.trial("trl_1"), () => Promise.resolve(trial("completed")));
    watch(keys.trialCheckpoints("trl_1"), checkpoints);
    await waitFor(() => expect(checkpoints).toHaveBeenCalledTimes(1));
    void act(() => send({ since: 10, seq: 11, trials: [trial("completed")] }));
    await wait(700);
    expect(checkpoints).toHaveBeenCalledTimes(2);
  });

  it("reads a trial that was read before it once more when the stream begins", async () => {
    const client = new QueryClient();
    client.setQueryData(keys.trial("trl_1"), trial("running"));
    client.setQueryData(keys.trial("trl_2"), { ...trial("running"), experiment_id: "exp_2" });
    const { watch } = await opened("running", 10, client);
    const read = vi.fn(() => Promise.resolve(trial("stopped")));
    const { result } = watch(keys.trial("trl_1"), read, Infinity);
    await waitFor(() => expect(result.current.data).toMatchObject({ state: "stopped" }));
    expect(read).toHaveBeenCalledTimes(1);
    expect(client.getQueryState(keys.trial("trl_2"))!.isInvalidated).toBe(false);
  });

  it("shows the end of a trial that ends while the first answer about it is on its way", async () => {
    const { wait, watch } = await opened();
    const answers: ((trial: Trial) => void)[] = [];
    const read = vi.fn(() => new Promise((resolve) => answers.push(resolve)));
    const { result } = watch(keys.trial("trl_1"), read);
    await waitFor(() => expect(read).toHaveBeenCalledTimes(1));
    void act(() => send({ since: 10, seq: 11, trials: [trial("completed")] }));
    await wait(700);
    answers[0]!(trial("running"));
    await waitFor(() => expect(result.current.data).toMatchObject({ state: "completed" }));
    await waitFor(() => expect(read).toHaveBeenCalledTimes(2));
  });

  it.each([
    ["the decisions of a trial", keys.trialDecisions("trl_1"), { trials: [trial("running")], decisions: [DECISION] }],
    ["the curves of a trial", keys.trialCurves("trl_1", STEP), { trials: [trial("completed")] }],
  ])("reads %s once more if they change while the first answer is on its way", async (_, queryKey, changes) => {
    const { client, wait, watch } = await opened();
    client.setQueryData(keys.trial("trl_1"), trial("running"));
    const answers: (() => void)[] = [];
    const read = vi.fn(() => new Promise((resolve) => answers.push(() => resolve([]))));
    watch(queryKey, read);
    void act(() => send({ since: 10, seq: 11, ...changes }));
    await wait(700);
    expect(read).toHaveBeenCalledTimes(1);
    answers[0]!();
    await waitFor(() => expect(read).toHaveBeenCalledTimes(2));
  });

  it("reads a trial again that ends while the first request about it fails", async () => {
    const { wait, watch } = await opened(
      "running",
      10,
      new QueryClient({ defaultOptions: { queries: { retry: false } } }),
    );
    const answers: (() => void)[] = [];
    const read = vi.fn(() => new Promise((_, reject) => answers.push(() => reject(new Error("no connection")))));
    watch(keys.trial("trl_1"), read);
    void act(() => send({ since: 10, seq: 11, trials: [trial("completed")] }));
    await wait(700);
    answers[0]!();
    await waitFor(() => expect(read).toHaveBeenCalledTimes(2));
  });

  it("reads an open trial again when it ends, since the last changes may not have come", async () => {
    const { answer, wait, watch } = await opened();
    const read = vi.fn(() => Promise.resolve(trial("running")));
    watch(keys.trial("trl_1"), read);
    await waitFor(() => expect(read).toHaveBeenCalledTimes(1));
    answer(row("completed", 20));
    await wait(100);
    expect(read).toHaveBeenCalledTimes(2);
  });

  it("brings an answer up to date with all changes that came meanwhile, and keeps none of them", async () => {
    const { client, result } = await opened();
    const waiting = () => result.current.recent["waiting"].size;
    const answers: (() => void)[] = [];
    vi.mocked(api.sample).mockImplementation(
      () =>
        new Promise((resolve) =>
          answers.push(() => resolve({ items: [], ranks: [], fronts: [], total: 0, trained: null })),
        ),
    );
    const queryKey = keys.trials("exp_1");
    void act(() => void client.invalidateQueries({ queryKey }));
    await act(() => client.cancelQueries({ queryKey }));
    answers.pop()!();
    await waitFor(() => expect(waiting()).toBe(0));
    void act(() => void client.invalidateQueries({ queryKey }));
    expect(waiting()).toBe(1);
    void act(() => {
      send({ since: 10, seq: 11, trials: [trial("running")] });
      for (let seq = 12; seq < 2200; seq += 1) send({ since: seq - 1, seq });
    });
    const seq = () => client.getQueryData<Experiment>(keys.experiment("exp_1"))!.last_event_seq;
    await waitFor(() => expect(seq()).toBe(2199));
    answers.pop()!();
    await waitFor(() => expect(result.current.trials.data!.items).toEqual([trial("running")]));
    expect(waiting()).toBe(0);
  });

  it.each([true, false])("reads a sample and the rows again while changes come (in sight: %s)", async (inSight) => {
    const { client, result } = await opened();
    const sample = vi.spyOn(api, "sample");
    sample.mockResolvedValue({ items: [], ranks: [], fronts: [], total: 5000, trained: null });
    const rows = vi.spyOn(api, "trials").mockResolvedValue({ items: [], next_page_token: null, total: 0, fronts: [] });
    const wrapper = ({ children }: { children: ReactNode }) => (
      <QueryClientProvider client={client}>{children}</QueryClientProvider>
    );
    vi.useFakeTimers();
    try {
      focusManager.setFocused(inSight);
      renderHook(() => useRows(result.current, { sort: "number", where: [] }, true), { wrapper });
      void client.refetchQueries({ queryKey: keys.trials("exp_1") });
      await act(() => vi.advanceTimersByTimeAsync(100));
      expect(result.current.trials.data!.complete).toBe(false);
      sample.mockClear();
      rows.mockClear();
      for (let seq = 11; seq < 42; seq += 1) {
        void act(() => send({ since: seq - 1, seq, trials: [trial("running")] }));
        await act(() => vi.advanceTimersByTimeAsync(1000));
      }
      expect(sample).toHaveBeenCalledTimes(inSight ? 2 : 0);
      expect(rows).toHaveBeenCalledTimes(inSight ? 6 : 0);
    } finally {
      focusManager.setFocused(undefined);
    }
  });

  it.each([
    ["trials are left out", { left_out: 500 }, [], 2],
    [
      "there are very many of them",
      { left_out: 0 },
      Array.from({ length: 2500 }, (_, number) => ({ number, points: 1 })),
      2,
    ],
    ["they have very many points", { left_out: 0 }, [{ number: 1, points: 2500 }], 2],
    ["they are few and short", { left_out: 0 }, [{ number: 1, points: 300 }], 0],
  ])("reads the curves again while changes come if %s", async (_, more, made, times) => {
    const { client, result } = await opened();
    const series = made.map(({ number, points }) => {
      const x = Array.from({ length: points }, (_, i) => i + 1);
      return {
        number,
        state: "running",
        best_value: null,
        segments: [{ ordinal: 1, last_iteration: points, x, y: x }],
      };
    });
    const curves = { metric: "loss", ...STEP, width: 1, best_so_far: { x: [], y: [] }, series, ...more };
    const read = vi.spyOn(api, "curves").mockResolvedValue(curves as unknown as Curves);
    const wrapper = ({ children }: { children: ReactNode }) => (
      <QueryClientProvider client={client}>{children}</QueryClientProvider>
    );
    vi.useFakeTimers();
    renderHook(() => useCurves(result.current, "loss", STEP), { wrapper });
    await act(() => vi.advanceTimersByTimeAsync(100));
    read.mockClear();
    await act(() => vi.advanceTimersByTimeAsync(31_000));
    expect(read).toHaveBeenCalledTimes(times);
  });

  it("keeps only the newest decisions if the stream has brought very many", async () => {
    const { result } = await opened();
    vi.useFakeTimers();
    const decisions = Array.from({ length: 5001 }, (_, seq) => ({ ...DECISION, seq }));
    void act(() => send({ since: 10, seq: 5010, decisions }));
    await act(() => vi.advanceTimersByTimeAsync(1000));
    expect(result.current.decisions.data!.items).toHaveLength(5001);
    await act(() => vi.advanceTimersByTimeAsync(15_000));
    expect(result.current.decisions.data!.items).toEqual([]);
  });

  it("keeps the older decisions that the user has asked for, however many, unless there would be a gap", async () => {
    const { client } = await opened();
    const page = (first: number, last: number) => ({
      items: Array.from({ length: first - last + 1 }, (_, i) => ({ ...DECISION, seq: first - i })),
      next_page_token: last > 0 ? String(last) : null,
    });
    const read = vi.mocked(api.decisions);
    read.mockImplementation((_, { page_token: token }) => Promise.resolve(token ? page(5999, 1) : page(6199, 6000)));
    const again = () => act(() => client.refetchQueries({ queryKey: keys.decisions("exp_1") }));
    const shown = () => {
      const { items } = client.getQueryData<Decisions>(keys.decisions("exp_1"))!;
      return [items[0]!.seq, items.at(-1)!.seq, items.length];
    };
    await again();
    expect(shown()).toEqual([6199, 6000, 200]);
    await act(() => readOlderDecisions(client, "exp_1"));
    expect(shown()).toEqual([6199, 1, 6199]);
    read.mockResolvedValue(page(6299, 6100));
    await again();
    expect(shown()).toEqual([6299, 1, 6299]);
    read.mockResolvedValue(page(6599, 6400));
    await again();
    expect(shown()).toEqual([6599, 6400, 200]);
  });
});

describe("the numbers of curves", () => {
  const MOST = 60_000;
  const lengths = [100, 50_000, 200, 30_000, 61_000, 300];

  /** Answer as the service does, which returns only so many points at once. */
  function serve(least = 1) {
    return vi.spyOn(api, "curves").mockImplementation((_, { trial = lengths.map((_, number) => number) }) => {
      const total = trial.reduce((sum, number) => sum + lengths[number]!, 0);
      const width = Math.max(least, total > MOST ? 8 : 1);
      const series = trial.map((number) => ({ number, segments: [{ x: Array(Math.ceil(lengths[number]! / width)) }] }));
      return Promise.resolve({ width, series } as unknown as Curves);
    });
  }
  const drawn = { metric: "loss", ...STEP, width: 400, series: [] as Series[] } as unknown as Curves;
  const points = ({ series }: Curves) => series.map(({ segments }) => segments[0]!.x.length);

  it("include every report even if the service cannot return all of them at once", async () => {
    serve();
    const found = await withEveryReport({ id: "exp_1", thinned_at: null }, drawn);
    expect(found.series.map(({ number }) => number)).toEqual([0, 1, 2, 3, 4, 5]);
    expect(points(found)).toEqual([100, 50_000, 200, 30_000, 7625, 300]);
  });

  it("are read once if most points of the experiment were deleted", async () => {
    const read = serve(8);
    await withEveryReport({ id: "exp_1", thinned_at: "2026-03-01T10:00:00Z" }, drawn);
    expect(read).toHaveBeenCalledTimes(1);
  });
});
