/**
 * One EventSource for one experiment. Events are handed over in batches, at most four times a second; the connection is closed
 * while nobody looks at the tab (HTTP/1.1 allows six per host) and taken up again where it was.
 */

import { EVENT_TYPES, type LiveEvent } from "./events";

export type StreamState = "connecting" | "live" | "reconnecting" | "hidden";

export interface StreamHandlers {
  /** Events in the order of their seq. */
  onEvents: (events: LiveEvent[]) => void;
  onState: (state: StreamState) => void;
  /** The tab was hidden for so long that reading everything again is cheaper; answer with the seq of that read. */
  onAway: () => Promise<number>;
}

const BATCH_MS = 250;
const AWAY_MS = 60_000;
const RETRY_MS = [1000, 2000, 5000, 10_000];

export class Stream {
  private source: EventSource | null = null;
  private batch: LiveEvent[] = [];
  private batchTimer: ReturnType<typeof setTimeout> | undefined;
  private retryTimer: ReturnType<typeof setTimeout> | undefined;
  private retries = 0;
  private hiddenSince: number | null = null;
  private closed = false;
  private readonly url: (after: number) => string;
  private readonly handlers: StreamHandlers;
  private after: number;

  constructor(url: (after: number) => string, after: number, handlers: StreamHandlers) {
    this.url = url;
    this.after = after;
    this.handlers = handlers;
    document.addEventListener("visibilitychange", this.onVisibility);
    if (document.hidden) this.onVisibility();
    else this.open();
  }

  close(): void {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.disconnect();
    clearTimeout(this.batchTimer);
  }

  private open(): void {
    if (this.closed || document.hidden) return;
    this.disconnect();
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
      if (source.readyState === EventSource.CLOSED) this.retry();
    };
    for (const type of EVENT_TYPES) source.addEventListener(type, this.onMessage);
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
    const event = { ...(JSON.parse(message.data) as object), type: message.type } as LiveEvent;
    if (message.lastEventId) this.after = Math.max(this.after, Number(message.lastEventId));
    this.batch.push(event);
    this.batchTimer ??= setTimeout(this.flush, BATCH_MS);
  };

  private readonly flush = (): void => {
    this.batchTimer = undefined;
    const events = this.batch;
    this.batch = [];
    if (events.length && !this.closed) this.handlers.onEvents(events);
  };

  private readonly onVisibility = (): void => {
    if (document.hidden) {
      this.hiddenSince = Date.now();
      this.disconnect();
      this.handlers.onState("hidden");
      return;
    }
    const away = this.hiddenSince === null ? 0 : Date.now() - this.hiddenSince;
    this.hiddenSince = null;
    if (away < AWAY_MS) return this.open();
    this.handlers.onAway().then(
      (seq) => {
        this.after = Math.max(this.after, seq);
        this.open();
      },
      () => this.open(),
    );
  };
}
