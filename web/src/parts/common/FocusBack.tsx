import { useEffect, useState } from "react";

/** The element that got the focus last. A menu's item is gone once its dialog is open, so the menu's button stands for it. */
let last: HTMLElement | null = null;

document.addEventListener("focusin", ({ target }) => {
  if (target instanceof HTMLElement) last = buttonOf(target);
});

/** The time within which a service usually carries an action out. */
const CARRIED_OUT_MS = 10_000;

function buttonOf(focused: HTMLElement): HTMLElement {
  const id = focused.closest("[role=menu], [role=dialog]")?.getAttribute("aria-labelledby");
  const button = id ? document.getElementById(id) : null;
  return button?.hasAttribute("aria-haspopup") ? button : focused;
}

/**
 * When the dialog that contains this is closed, return the focus to the element that opened the dialog, or to a button beside it
 * if that one is gone or disabled, as "Pause" is after a pause. Mantine returns it only for a dialog that was on the page before it
 * was opened, and whose opener is still there.
 */
export function FocusBack() {
  const [opener] = useState(last);
  const [around] = useState(opener?.parentElement);
  useEffect(
    () => () => {
      // Wait until the dialog is gone, and leave the focus alone if it is somewhere else by then.
      setTimeout(() => {
        if (!isLost()) return;
        const beside = () =>
          around?.querySelector<HTMLElement>("button:not([disabled])")?.focus({ preventScroll: true });
        if (opener?.isConnected) opener.focus({ preventScroll: true });
        if (isLost()) return beside();
        // The service carries an action out a moment later, and only then is the button gone.
        const watcher = new MutationObserver(() => {
          if (!opener?.isConnected && isNowhere()) beside();
        });
        if (around) watcher.observe(around, { childList: true });
        setTimeout(() => watcher.disconnect(), CARRIED_OUT_MS);
      });
    },
    [opener, around],
  );
  return null;
}

function isNowhere(): boolean {
  return document.activeElement === null || document.activeElement === document.body;
}

/** Return true if the focus is nowhere, or still in the dialog that is being closed. */
function isLost(): boolean {
  return isNowhere() || document.activeElement!.closest("[aria-modal=true]") !== null;
}
