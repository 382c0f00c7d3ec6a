import { useEffect, useState } from "react";

/** The element that got the focus last. A menu's item is gone once its dialog is open, so the menu's button stands for it. */
let last: HTMLElement | null = null;

document.addEventListener("focusin", ({ target }) => {
  if (target instanceof HTMLElement) last = buttonOf(target);
});

function buttonOf(focused: HTMLElement): HTMLElement {
  const id = focused.closest("[role=menu], [role=dialog]")?.getAttribute("aria-labelledby");
  const button = id ? document.getElementById(id) : null;
  return button?.hasAttribute("aria-haspopup") ? button : focused;
}

/**
 * When the dialog that contains this is closed, return the focus to the element that opened the dialog. Mantine does so only for a dialog
 * that was on the page before it was opened, and whose opener is still there.
 */
export function FocusBack() {
  const [opener] = useState(last);
  useEffect(
    () => () => {
      // Wait until the dialog is gone, and leave the focus alone if it is somewhere else by then.
      setTimeout(() => {
        const lost = document.activeElement === document.body || document.activeElement?.closest("[aria-modal=true]");
        if (lost && opener?.isConnected) opener.focus({ preventScroll: true });
      });
    },
    [opener],
  );
  return null;
}
