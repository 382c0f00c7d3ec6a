/** Tells the other tabs of this service in the browser that somebody has signed in or out. They share one session. */

import { ROOT } from "../../api/root";

export const CHANNEL = `tuner session ${ROOT}`;

/** A message does not come back to the channel that has sent it, so this tab has only one. */
let channel: BroadcastChannel | null | undefined;
const own = () => (channel === undefined ? (channel = opened()) : channel);

/** Return null if the browser has none, or refuses one since it may keep nothing for this site. The tabs then do not follow each other. */
function opened(): BroadcastChannel | null {
  try {
    return new BroadcastChannel(CHANNEL);
  } catch {
    return null;
  }
}

/** Tell the other tabs that the session has changed. */
export function tellOtherTabs(): void {
  own()?.postMessage(null);
}

/** Call a function whenever another tab says that the session has changed. Return a function that ends this. */
export function onOtherTabs(changed: () => void): () => void {
  own()?.addEventListener("message", changed);
  return () => own()?.removeEventListener("message", changed);
}
