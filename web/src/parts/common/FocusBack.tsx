import { useEffect, useState } from "react";
import { elementsAround, focusNear, isNowhere, openerOf, whileLost } from "./keptFocus";

/** The element that got the focus last. A menu's item is gone once its dialog is open, so the menu's button stands for it. */
let last: HTMLElement | null = null;

document.addEventListener("focusin", ({ target }) => {
  if (target instanceof HTMLElement) last = openerOf(target) ?? target;
});

/**
 * When the dialog that contains this is closed, return the focus to the element that opened the dialog, or to a button beside it
 * if that one is gone or disabled, as "Pause" is after a pause. Mantine returns it only for a dialog that was on the page before it
 * was opened, and whose opener is still there.
 */
export function FocusBack() {
  const [opener] = useState(last);
  const [around] = useState(opener?.parentElement);
  // Not what is around all pages: if the dialog has opened another page, the focus goes to the heading of that one.
  const [parts] = useState(() =>
    opener ? elementsAround(opener, "body").filter((part) => !part.querySelector("main")) : [],
  );
  useEffect(
    () => () => {
      // Wait until the dialog is gone, and leave the focus alone if it is somewhere else by then.
      setTimeout(() => {
        if (!isLost()) return;
        const beside = () => {
          around?.querySelector<HTMLElement>("button:not([disabled])")?.focus({ preventScroll: true });
          // The buttons beside it may be gone, too, as those for the selected experiments once these are archived.
          if (isLost()) focusNear(parts);
        };
        if (opener?.isConnected) opener.focus({ preventScroll: true });
        if (isLost()) return beside();
        // The service carries an action out a moment later, and only then is the button gone.
        const outside = around?.closest("main") ?? around;
        if (opener && outside) whileLost(opener, outside, () => !opener?.isConnected && beside());
      });
    },
    [opener, around, parts],
  );
  return null;
}

/** Return true if the focus is nowhere, or still in the dialog that is being closed. */
function isLost(): boolean {
  return isNowhere() || document.activeElement!.closest("[aria-modal=true]") !== null;
}
