import { useSyncExternalStore } from "react";
import { flushSync } from "react-dom";

/** True while the page is printed. It has light colors then, a width that fits on paper, and tables with their rows below the view. */
let printing = false;
const listeners = new Set<() => void>();

function set(now: boolean): void {
  printing = now;
  document.documentElement.toggleAttribute("data-printing", now);
  // The browser prints what is there when this returns.
  flushSync(() => listeners.forEach((tell) => tell()));
}

window.addEventListener("beforeprint", () => set(true));
window.addEventListener("afterprint", () => set(false));

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function isPrinting(): boolean {
  return printing;
}

/** Return true while the page is printed. */
export function usePrinting(): boolean {
  return useSyncExternalStore(subscribe, isPrinting);
}
