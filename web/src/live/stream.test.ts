import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Changes } from "../api/types";
import { Stream, type StreamState } from "./stream";

/** Stands in for the browser's EventSource, which a test cannot make fail. */
class Source {
  static readonly OPEN = 1;
  static readonly CLOSED = 2;
  static made: Source[] = [];
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  private listeners = new Map<string, (message: MessageEvent<string>) => void>();
  readonly url: string;

  constructor(url: string) {
    this.url = url;
    Source.made.push(this);
  }

  addEventListener(type: string, listener: (message: MessageEvent<string>) => void): void {
    this.listeners.set(type, listener);
  }

  close(): void {
    this.readyState = Source.CLOSED;
  }

  open(): void {
    this.readyState = 1;
    this.onopen?.();
  }

  send(changes: Partial<Changes>): void {
    this.listeners.get("changes")!(new MessageEvent("changes", { data: JSON.stringify({ reset: false, ...changes }) }));
  }

  break(): void {
    this.readyState = Source.CLOSED;
    this.onerror?.();
  }
}

describe("the stream", () => {
  let hidden = false;
  let states: StreamState[];
  let batches: number[][];
  let resets: number;
  let refused: number;
  let read: Promise<void>;
  let stream: Stream;

  const newest = () => Source.made[Source.made.length - 1]!;
  const hide = (on: boolean) => {
    hidden = on;
    document.dispatchEvent(new Event("visibilitychange"));
  };

  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("EventSource", Source);
    vi.spyOn(document, "hidden", "get").mockImplementation(() => hidden);
    Source.made = [];
    [hidden, states, batches, resets, refused, read] = [false, [], [], 0, 0, Promise.resolve()];
    stream = new Stream((after) => `/changes?after=${after}`, 7, {
      onChanges: (changes) => batches.push(changes.map((one) => one.seq)),
      onReset: () => {
        resets += 1;
        return read;
      },
      onState: (state) => states.push(state),
      onRefused: () => (refused += 1),
    });
  });

  afterEach(() => {
    stream.close();
    vi.useRealTimers();
    vi.unstubAllGlobals();
    vi.restoreAllMocks();
  });

  it("begins after the given change and passes changes on in batches", () => {
    expect(newest().url).toBe("/changes?after=7");
    newest().open();
    for (const seq of [8, 9, 12]) newest().send({ seq });
    expect(batches).toEqual([]);
    vi.advanceTimersByTime(100);
    newest().send({ seq: 13 });
    vi.advanceTimersByTime(100);
    expect(batches).toEqual([[8, 9, 12], [13]]);
    expect(states).toEqual(["connecting", "live"]);
  });

  it("passes on the first change after a pause at once, and holds back the next ones", () => {
    newest().open();
    newest().send({ seq: 8 });
    vi.advanceTimersByTime(0);
    expect(batches).toEqual([[8]]);
    newest().send({ seq: 9 });
    vi.advanceTimersByTime(99);
    expect(batches).toEqual([[8]]);
    vi.advanceTimersByTime(1);
    expect(batches).toEqual([[8], [9]]);
  });

  it("continues after the last change if the connection is refused, with growing pauses between tries", () => {
    newest().open();
    newest().send({ seq: 11 });
    newest().break();
    expect(states.at(-1)).toBe("reconnecting");
    vi.advanceTimersByTime(999);
    expect(Source.made).toHaveLength(1);
    vi.advanceTimersByTime(1);
    expect(newest().url).toBe("/changes?after=11");
    newest().break();
    vi.advanceTimersByTime(1999);
    expect(Source.made).toHaveLength(2);
    vi.advanceTimersByTime(1);
    expect(Source.made).toHaveLength(3);
    newest().open();
    expect(states.at(-1)).toBe("live");
  });

  it("leaves the reconnection to the browser if the browser does it", () => {
    newest().open();
    newest().onerror?.();
    vi.advanceTimersByTime(60_000);
    expect(Source.made).toHaveLength(1);
    expect(refused).toBe(0);
  });

  it("connects again if the service has changes that do not come, and only then", () => {
    newest().open();
    stream.expect(7);
    vi.advanceTimersByTime(60_000);
    stream.expect(9); // not yet late
    newest().send({ seq: 9 });
    vi.advanceTimersByTime(10_000);
    stream.expect(12);
    vi.advanceTimersByTime(4999);
    stream.expect(12);
    expect(Source.made).toHaveLength(1);
    vi.advanceTimersByTime(1);
    stream.expect(12);
    expect(newest().url).toBe("/changes?after=9");
    expect(Source.made).toHaveLength(2);
    vi.advanceTimersByTime(10_000);
    stream.expect(12); // the browser is still connecting
    expect(Source.made).toHaveLength(2);
    newest().open();
    expect(states.at(-1)).toBe("live");
  });

  it("connects again if the request for the stream gets no answer although the service has changes", () => {
    newest().open();
    newest().readyState = 0; // the browser reconnects, over a connection that was cut on the way
    newest().onerror?.();
    stream.expect(9);
    vi.advanceTimersByTime(10_000);
    stream.expect(9);
    expect(Source.made).toHaveLength(2);
    expect(newest().url).toBe("/changes?after=7");
    newest().open();
    newest().send({ since: 7, seq: 9 });
    vi.advanceTimersByTime(100);
    expect(batches).toEqual([[9]]);
    expect(resets).toBe(0);
  });

  it("lets everything be read again if a new connection brings no changes either", async () => {
    const poll = async (seq: number) => {
      newest().open();
      stream.expect(seq);
      await vi.advanceTimersByTimeAsync(10_000);
    };
    for (const seq of [9, 12]) await poll(seq);
    expect([Source.made.length, resets]).toEqual([2, 0]);
    for (const seq of [15, 15]) await poll(seq);
    expect([Source.made.length, resets]).toEqual([3, 1]);
    expect(newest().url).toBe("/changes?after=15");
    for (const seq of [17, 17]) await poll(seq);
    expect(resets).toBe(2);
    newest().send({ since: 17, seq: 18 });
    for (const seq of [20, 20]) await poll(seq);
    expect(resets).toBe(2);
  });

  it("lets everything be read to the end before it is read again, however slow the service is", async () => {
    let done = () => {};
    read = new Promise((resolve) => (done = resolve));
    const poll = async (seq: number) => {
      newest().open();
      stream.expect(seq);
      await vi.advanceTimersByTimeAsync(10_000);
    };
    for (const seq of [9, 10, 11, 12, 13, 14, 15, 16]) await poll(seq);
    expect(resets).toBe(1);
    done();
    await poll(17);
    await poll(18);
    expect(resets).toBe(2);
  });

  it("closes the connection while the tab is hidden, and then continues after the last change", () => {
    newest().open();
    newest().send({ seq: 20 });
    hide(true);
    expect(newest().readyState).toBe(Source.CLOSED);
    expect(states.at(-1)).toBe("hidden");
    vi.advanceTimersByTime(250);
    expect(batches).toEqual([[20]]);
    hide(false);
    expect(newest().url).toBe("/changes?after=20");
  });

  it("drops pending changes when everything has to be read again", () => {
    newest().send({ seq: 8 });
    newest().send({ seq: 5000, reset: true });
    newest().send({ seq: 5001 });
    vi.advanceTimersByTime(250);
    expect(resets).toBe(1);
    expect(batches).toEqual([[5001]]);
  });

  it("asks for everything to be read again if changes are missing", () => {
    newest().send({ since: 7, seq: 8 });
    newest().send({ since: 8, seq: 8 });
    newest().send({ since: 3, seq: 9 });
    expect(resets).toBe(0);
    newest().send({ since: 10, seq: 11 });
    expect(resets).toBe(1);
    newest().send({ since: 11, seq: 12 });
    vi.advanceTimersByTime(250);
    expect(batches).toEqual([[12]]);
  });

  it("passes nothing on after it was closed", () => {
    newest().send({ seq: 8 });
    stream.close();
    vi.advanceTimersByTime(1000);
    hide(true);
    hide(false);
    expect(batches).toEqual([]);
    expect(Source.made).toHaveLength(1);
  });
});
