import { lazy, useSyncExternalStore } from "react";
import { api, ApiError } from "../../api/client";

const RETRY_MS = 2000;
/** If a part cannot be loaded this soon after the page was loaded again, loading it once more does not help. */
const AGAIN_MS = 15_000;

/**
 * Return a part of the page that is loaded when it is first shown. Loading fails if the network is lost, or if the service has been
 * updated, which renames the files. Then wait until the service responds, and load the part again. If that fails, too, load the
 * whole page again: its address contains what the user chose.
 */
export const lazily: typeof lazy = (load) => lazy(() => load().catch((error) => loadAgain(load, error)));

async function loadAgain<T>(load: () => Promise<T>, error: unknown): Promise<T> {
  const wasLoadedAgain = isReload() && performance.now() < AGAIN_MS;
  do {
    await untilItResponds();
    try {
      return await load();
    } catch {
      // The file is gone, or the service went away again meanwhile.
    }
  } while (!(await responds()));
  if (wasLoadedAgain) throw error;
  window.location.reload();
  return new Promise(() => {});
}

function isReload(): boolean {
  const [how] = performance.getEntriesByType("navigation") as PerformanceNavigationTiming[];
  return how?.type === "reload";
}

/** Return whether the service responds, even if it refuses the request. */
async function responds(): Promise<boolean> {
  try {
    await api.session();
  } catch (error) {
    return !(error instanceof ApiError && error.unreachable);
  }
  return true;
}

/** The parts that wait for the service: what ends the pause of each before it asks again. */
const waiting = new Map<symbol, () => void>();
const listeners = new Set<() => void>();

async function untilItResponds(): Promise<void> {
  if (await responds()) return;
  const part = Symbol();
  waiting.set(part, () => {});
  listeners.forEach((tell) => tell());
  do {
    await new Promise<void>((done) => {
      waiting.set(part, done);
      setTimeout(done, RETRY_MS);
    });
  } while (!(await responds()));
  waiting.delete(part);
  listeners.forEach((tell) => tell());
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return true while something that the user has opened cannot be loaded, since the service does not respond. */
export function useIsWaiting(): boolean {
  return useSyncExternalStore(subscribe, () => waiting.size > 0);
}

/** Ask now whether the service responds. */
export function askNow(): void {
  waiting.forEach((ask) => ask());
}
