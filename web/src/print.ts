import { useLayoutEffect, useRef, useSyncExternalStore } from "react";
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

/**
 * Call `resize` when the page gets its width on paper, and when it gets the width of the window back. A ResizeObserver is called
 * too late for the former, and not at all for the latter if the browser has drawn no frame between.
 */
export function useResizeForPrint(resize: () => void): void {
  const now = usePrinting();
  const before = useRef(now);
  useLayoutEffect(() => {
    if (now === before.current) return;
    before.current = now;
    resize();
  });
}
