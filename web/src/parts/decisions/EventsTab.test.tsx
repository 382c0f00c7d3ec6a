import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment, LogEntry } from "../../api/types";
import EventsTab from "./EventsTab";
import { eventWords, grouped, GROUPS, groupWords, iterationsOf, kindsOf } from "./eventWords";

describe("an event in words", () => {
  it.each<[LogEntry["kind"], Record<string, unknown>, string]>([
    [
      "driver_started",
      { epoch: 2, slots: 4, executor: "trials run on Ray: a rank needs two processes" },
      "A new driver took over the experiment (driver 2); there is room for 4 trials at once; trials run on Ray: a rank needs two processes",
    ],
    [
      "segment_started",
      { segment: 1, startup_s: 1.3, warm: true, placement: { ranks: [{ host: "a" }, { host: "b" }, { host: "a" }] } },
      "The trial started within 1.3 s on a, b, in processes that were already running",
    ],
    [
      "segment_ended",
      { segment: 2, outcome: "failed", failure: { message: "boom\nmore", rank: 1, traceback: "" } },
      "The trial failed (segment 2) on rank 1: boom",
    ],
    [
      "segment_ended",
      { segment: 2, outcome: "left", failure: null },
      "The trial stopped running because of a decision (segment 2)",
    ],
    ["segment_ended", { segment: 1, outcome: "returned", failure: null }, "The training function returned"],
    ["waiting", { segment: 2, reason: "2 CPUs are missing" }, "The trial waits to start again: 2 CPUs are missing"],
    ["reported", { iteration: 9, metrics: { loss: null, acc: 0.123456789 } }, "Iteration 9: loss –, acc 0.123457"],
    ["commanded", { command: "stop", reason: "" }, "A user asked to stop the experiment"],
    ["amended", { changes: { num_samples: 40 }, reason: "more" }, "A user changed num_samples: more"],
    ["enqueued", { points: [{ params: { lr: 1 } }], reason: "" }, "A user enqueued a trial"],
    ["suggested", { number: 3, params: { lr: 0.5 } }, "The searcher proposed trial 3: lr=0.5"],
    [
      "upload_failed",
      { segment: 1, checkpoint: { id: "ckp_1", step: 6 }, reason: "the disk is full" },
      "The checkpoint of iteration 6 was not saved, since its upload failed: the disk is full",
    ],
    [
      "checkpoint_saved",
      { segment: 1, checkpoint: { id: "ckp_1", step: 6, bytes: 2_400_000 } },
      "The checkpoint of iteration 6 was saved (2.29 MiB): the trial can continue from it",
    ],
    ["checkpoint_deleted", { checkpoint: "ckp_1" }, "The checkpoint ckp_1 was deleted: it is not kept any longer"],
    [
      "pinned",
      { checkpoint: "ckp_1", pinned: true },
      "A user pinned the checkpoint ckp_1: it is kept until it is unpinned",
    ],
    ["workers_changed", { workers: 6 }, "Elastic trials may now have 6 workers together"],
    ["workers_changed", { workers: 1 }, "Elastic trials may now have 1 worker together"],
    [
      "clock_jumped",
      { start: 5, seconds: 7200 },
      "The driver or its machine was suspended for 2 h 0 min, or its clock was put forward: this time does not count as training",
    ],
    ["clock_jumped", { start: 5, seconds: -90 }, "The clock of the driver was put back by 1 min 30 s"],
    ["gpu_hours_spent", { gpu_hours: 8 }, "The budget of 8 GPU hours is used up"],
  ])("%s", (kind, data, words) => expect(eventWords({ kind, data }).text).toBe(words));

  it("names the iteration of a checkpoint if another event tells it", () => {
    const iterations = iterationsOf([
      { data: { checkpoint: { id: "ckp_1", step: 6 } } },
      { data: { uploading: [{ id: "ckp_2", step: 9 }] } },
      { data: { checkpoint: "ckp_3" } },
      { data: { checkpoint: null } },
    ]);
    expect([...iterations]).toEqual([
      ["ckp_1", 6],
      ["ckp_2", 9],
    ]);
    const words = (data: Record<string, unknown>) => eventWords({ kind: "checkpoint_deleted", data }, iterations).text;
    expect(words({ checkpoint: "ckp_2" })).toBe("The checkpoint of iteration 9 was deleted: it is not kept any longer");
    const unpinned = { kind: "pinned" as const, data: { checkpoint: "ckp_1", pinned: false } };
    expect(eventWords(unpinned, iterations).text).toBe(
      "A user unpinned the checkpoint of iteration 6: it may be deleted again",
    );
  });

  it("describes every kind of event, and puts long text behind a disclosure", () => {
    const kinds = GROUPS.flatMap((one) => one.kinds);
    expect(new Set(kinds).size).toBe(24);
    for (const kind of kinds) expect(eventWords({ kind, data: {} }).text, kind).not.toMatch(/undefined|null|NaN/);
    const failed = eventWords({ kind: "segment_ended", data: { failure: { message: "boom", traceback: "line 1" } } });
    expect(failed.more).toBe("line 1");
  });

  it("is one line for three or more that tell little, unless a kind is chosen", () => {
    const of = (...kinds: LogEntry["kind"][]) => kinds.map((kind, seq) => ({ kind, seq }));
    const entries = of(
      "checkpoint_saved",
      "checkpoint_deleted",
      "checkpoint_saved",
      "segment_ended",
      "suggested",
      "suggested",
    );
    const rows = grouped(entries);
    expect(rows).toEqual([entries.slice(0, 3), entries[3], entries[4], entries[5]]);
    expect(groupWords(entries.slice(0, 3))).toBe("2 checkpoints were saved, 1 checkpoint was deleted");
    expect(eventWords({ kind: "commanded", data: { command: "stop" }, trial_number: 3 }).text).toBe(
      "A user asked to stop the trial",
    );
  });

  it("leaves out the kinds that would hide all others, unless they are asked for", () => {
    expect(kindsOf([])).not.toContain("reported");
    expect(kindsOf([])).toContain("segment_ended");
    expect(kindsOf(["checkpoints", "driver and limits"])).toEqual(
      expect.arrayContaining(["upload_failed", "workers_changed"]),
    );
    expect(kindsOf(["reports"])).toEqual(["reported"]);
  });
});

describe("the list of events", () => {
  afterEach(() => {
    vi.restoreAllMocks();
    vi.useRealTimers();
  });

  it("is read again only if the log has grown, as it may after the end of the experiment, too", async () => {
    vi.useFakeTimers();
    const read = vi.spyOn(api, "log").mockResolvedValue({ items: [], next_page_token: null });
    const client = new QueryClient();
    const address = { get: () => null, set: () => {} };
    const tab = (state: Experiment["state"], last_event_seq: number) => (
      <MantineProvider>
        <QueryClientProvider client={client}>
          <EventsTab
            experiment={{ id: "exp_1", name: "a", state, last_event_seq } as Experiment}
            address={address}
            onSelect={() => {}}
          />
        </QueryClientProvider>
      </MantineProvider>
    );
    const pass = () => act(() => vi.advanceTimersByTimeAsync(10_000));
    const { rerender } = render(tab("running", 5));
    await pass();
    expect(read).toHaveBeenCalledTimes(1);
    expect(screen.getByText(/A segment is one uninterrupted run.*processes that an earlier one/)).toBeTruthy();
    rerender(tab("running", 6));
    await pass();
    expect(read).toHaveBeenCalledTimes(2);
    rerender(tab("completed", 7));
    await pass();
    expect(read).toHaveBeenCalledTimes(3);
    await pass();
    expect(read).toHaveBeenCalledTimes(3);
  });

  it("keeps a group open that grows by newer events or by the next page", async () => {
    const saved = (from: number, to: number) =>
      Array.from({ length: from - to + 1 }, (_, i) => ({
        seq: from - i,
        time: "2026-03-01T10:00:00Z",
        kind: "checkpoint_saved",
        trial_number: 0,
        data: {},
      }));
    let newest = 9;
    vi.spyOn(api, "log").mockImplementation((_id, { page_token }) =>
      Promise.resolve(
        (page_token
          ? { items: saved(5, 3), next_page_token: null }
          : { items: saved(newest, 6), next_page_token: "older" }) as never,
      ),
    );
    const client = new QueryClient();
    const address = { get: () => null, set: () => {} };
    render(
      <MantineProvider env="test">
        <QueryClientProvider client={client}>
          <EventsTab
            experiment={{ id: "exp_1", name: "a", state: "completed", last_event_seq: 9 } as Experiment}
            address={address}
            onSelect={() => {}}
          />
        </QueryClientProvider>
      </MantineProvider>,
    );
    const button = await screen.findByRole("button", { name: "show all 4" });
    button.focus();
    fireEvent.click(button);
    expect(screen.getAllByText(/^The checkpoint of iteration/)).toHaveLength(4);
    expect(document.activeElement).toBe(button);
    fireEvent.click(screen.getByRole("button", { name: "Older events" }));
    await screen.findByText("7 checkpoints were saved");
    expect(screen.getAllByText(/^The checkpoint of iteration/)).toHaveLength(7);
    newest = 11;
    await act(() => client.refetchQueries());
    await screen.findByText("9 checkpoints were saved");
    expect(screen.getAllByText(/^The checkpoint of iteration/)).toHaveLength(9);
    fireEvent.click(button);
    expect(screen.queryByText(/^The checkpoint of iteration/)).toBeNull();
    expect(document.activeElement).toBe(button);
  });

  it("shows the date where the day changes, and in the first row if it is not today's", async () => {
    vi.useFakeTimers({ now: new Date(2026, 2, 3, 12), toFake: ["Date"] });
    const at = (kind: string, seq: number, ...time: [number, number, number, number]) => ({
      ...{ seq, kind, time: new Date(...time).toISOString(), trial_number: 0, data: {} },
    });
    const saved = [9, 8, 7].map((seq) => at("checkpoint_saved", seq, 2026, 2, 2, seq));
    const items = [...saved, at("waiting", 6, 2026, 2, 2, 1), at("waiting", 5, 2025, 11, 31, 1)];
    vi.spyOn(api, "log").mockResolvedValue({ items, next_page_token: null } as never);
    render(
      <MantineProvider env="test">
        <QueryClientProvider client={new QueryClient()}>
          <EventsTab
            experiment={{ id: "exp_1", name: "a", state: "completed", last_event_seq: 9 } as Experiment}
            address={{ get: () => null, set: () => {} }}
            onSelect={() => {}}
          />
        </QueryClientProvider>
      </MantineProvider>,
    );
    fireEvent.click(await screen.findByRole("button", { name: "show all 3" }));
    const dates = [...document.querySelectorAll("li time")].map((time) => time.querySelector("b")?.textContent.trim());
    const day = (date: Date, year: object) =>
      date.toLocaleDateString(undefined, { month: "short", day: "numeric", ...year });
    const first = day(new Date(2026, 2, 2), {});
    const last = day(new Date(2025, 11, 31), { year: "numeric" });
    expect(dates).toEqual([first, undefined, undefined, undefined, undefined, last]);
  });
});
