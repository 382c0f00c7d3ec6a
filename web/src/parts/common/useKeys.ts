import { useEffect, useLayoutEffect, useRef } from "react";

/** The function to call when a key is pressed, by `KeyboardEvent.key`. */
export type Keys = Readonly<Record<string, () => void>>;

/** Matches the field to which `/` goes. */
export const SEARCH_FIELD = "input[data-search]";

/** Matches an open dialog, such as a form. The panel of a trial does not count: keys still work while it is open. */
const DIALOG = ".mantine-Modal-content";

/** Listen for single keys while the component is mounted, except while the user types or a dialog is open, or with Ctrl, Alt or Meta. */
export function useKeys(keys: Keys): void {
  const now = useRef(keys);
  // Update before the next frame, since the next key may come at once.
  useLayoutEffect(() => {
    now.current = keys;
  });
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (isShortcut(event) || event.defaultPrevented || isTyping(event.target)) return;
      const act = now.current[event.key];
      if (!act || document.querySelector(DIALOG)) return;
      event.preventDefault();
      act();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
}

/** Return true for keys that belong to the browser or to the system, such as Alt and the left arrow, which goes back. */
export function isShortcut({
  altKey,
  ctrlKey,
  metaKey,
}: Pick<KeyboardEvent, "altKey" | "ctrlKey" | "metaKey">): boolean {
  return altKey || ctrlKey || metaKey;
}

const TEXT = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable=true]";

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest(TEXT) !== null;
}
