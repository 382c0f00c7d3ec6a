/**
 * One EventSource for one experiment. Changes are handed over in batches, at most ten times a second. The connection is closed
 * while nobody looks at the tab (HTTP/1.1 allows six for one host) and opened again at the same place in the log.
 */

import { parsed } from "../api/exact";
import type { Changes } from "../api/types";

export type StreamState = "connecting" | "live" | "reconnecting" | "hidden";

export interface StreamHandlers {
  /** Changes in their order; none of them is a reset. */
  onChanges: (changes: Changes[]) => void;
  /**
   * Read everything again, since so much has changed. What changes after that comes with `onChanges`. The promise is fulfilled
   * once everything has been read.
   */
  onReset: () => Promise<void>;
  onState: (state: StreamState) => void;
  /** The service has refused the stream: the session may have ended, or the experiment may be gone. */
  onRefused: () => void;
}

/** The time between two batches. The first change after a longer pause is handed over at once. */
const BATCH_MS = 100;
const RETRY_MS = [1000, 2000, 5000, 10_000];
/** If changes are missing, and no message arrives for this long, the connection is dead. */
const SILENT_MS = 5000;

export class Stream {
  private source: EventSource | null = null;
  private batch: Changes[] = [];
  private batchTimer: ReturnType<typeof setTimeout> | undefined;
  private retryTimer: ReturnType<typeof setTimeout> | undefined;
  private flushedAt = -Infinity;
  private retries = 0;
  private closed = false;
  private readonly url: (after: number) => string;
  private readonly handlers: StreamHandlers;
  private after: number;
  /** When it was first noticed that changes are missing, and the last change that had come by then. */
  private missing: { at: number; after: number } | null = null;
  /** True if nothing has come since the connection was given up. */
  private silent = false;
  /** The reading that the last reset has begun; null once it has ended. */
  private reading: Promise<void> | null = null;

  constructor(url: (after: number) => string, after: number, handlers: StreamHandlers) {
    this.url = url;
    this.after = after;
    this.handlers = handlers;
    document.addEventListener("visibilitychange", this.onVisibility);
    this.onVisibility();
  }

  close(): void {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.disconnect();
    clearTimeout(this.batchTimer);
  }

  /**
   * Say that the log reaches up to `seq`. A connection that is cut on the way, as by a VPN, stays open for the browser, which
   * only waits, even for the answer to a new request. So if no change has come for a while although there are some, connect again.
   * If that does not help, as behind a proxy that holds the stream back, let everything be read again. A slow service gets the
   * time for that: begun anew with each call, it would never end.
   */
  expect(seq: number): void {
    if (seq <= this.after || this.source === null) this.missing = null;
    else if (this.missing?.after !== this.after) this.missing = { at: performance.now(), after: this.after };
    else if (performance.now() - this.missing.at >= SILENT_MS && this.reading === null) {
      if (this.silent) this.reset(seq);
      this.silent = true;
      this.open();
    }
  }

  /** Let everything be read again, at least up to `seq`. */
  private reset(seq: number): void {
    this.after = Math.max(this.after, seq);
    this.batch = [];
    const reading = this.handlers.onReset();
    this.reading = reading;
    void reading.then(() => {
      if (this.reading === reading) this.reading = null;
    });
  }

  private open(): void {
    if (this.closed || document.hidden) return;
    this.disconnect();
    this.missing = null;
    this.handlers.onState(this.retries ? "reconnecting" : "connecting");
    const source = new EventSource(this.url(this.after));
    this.source = source;
    source.onopen = () => {
      this.retries = 0;
      this.handlers.onState("live");
    };
    // The browser reconnects by itself, with Last-Event-ID, unless the answer was an error.
    source.onerror = () => {
      this.handlers.onState("reconnecting");
      if (source.readyState !== EventSource.CLOSED) return;
      this.retry();
      this.handlers.onRefused();
    };
    source.addEventListener("changes", this.onMessage);
  }

  private disconnect(): void {
    clearTimeout(this.retryTimer);
    this.source?.close();
    this.source = null;
  }

  private retry(): void {
    const delay = RETRY_MS[Math.min(this.retries, RETRY_MS.length - 1)];
    this.retries += 1;
    this.disconnect();
    this.retryTimer = setTimeout(() => this.open(), delay);
  }

  private readonly onMessage = (message: MessageEvent<string>): void => {
    const changes = parsed(message.data) as Changes;
    this.silent = false;
    // Some changes before these were lost, so everything has to be read again.
    const gap = changes.since > this.after;
    if (changes.reset || gap) return this.reset(changes.seq);
    this.after = Math.max(this.after, changes.seq);
    this.batch.push(changes);
    this.batchTimer ??= setTimeout(this.flush, Math.max(0, this.flushedAt + BATCH_MS - performance.now()));
  };

  private readonly flush = (): void => {
    this.batchTimer = undefined;
    this.flushedAt = performance.now();
    const batch = this.batch;
    this.batch = [];
    if (batch.length > 0 && !this.closed) this.handlers.onChanges(batch);
  };

  private readonly onVisibility = (): void => {
    if (!document.hidden) return this.open();
    this.disconnect();
    this.handlers.onState("hidden");
  };
}
