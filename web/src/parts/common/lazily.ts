import { lazy } from "react";
import { api, ApiError } from "../../api/client";

const RETRY_MS = 2000;
/** If a part cannot be loaded this soon after the page was loaded again, loading it once more does not help. */
const AGAIN_MS = 15_000;

/**
 * Return a part of the page that is loaded when it is first shown. Loading fails if the network is lost, or if the service has been
 * updated, which renames the files. Then wait until the service responds, and load the whole page again: its address contains what
 * the user chose.
 */
export const lazily: typeof lazy = (load) => lazy(() => load().catch(loadAgain));

async function loadAgain(error: unknown): Promise<never> {
  const wasLoadedAgain = isReload() && performance.now() < AGAIN_MS;
  if ((await responds()) && wasLoadedAgain) throw error;
  while (!(await responds())) await new Promise((done) => setTimeout(done, RETRY_MS));
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
