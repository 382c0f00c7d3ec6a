/** The time within which a service usually carries an action out. */
export const CARRIED_OUT_MS = 10_000;
const CONTROLS = ":is(button, input, select, textarea):not([disabled]), a[href]";

/** Return true if no element has the focus. */
export function isNowhere(): boolean {
  return document.activeElement === null || document.activeElement === document.body;
}

/** Focus the first control in the nearest of these elements that is still on the page; in a table, not a control of another row. */
export function focusNear(around: readonly Element[]): void {
  for (const part of around) {
    if (!part.isConnected || part.matches("tbody, table")) continue;
    const controls = part.matches("[tabindex='0']") ? [part] : part.querySelectorAll(CONTROLS);
    for (const control of controls as Iterable<HTMLElement>) {
      control.focus({ preventScroll: true });
      if (!isNowhere()) return;
    }
  }
}

/** Return the elements around this one, from the inside out, within `end`. */
export function elementsAround(element: Element, end: string): Element[] {
  const around: Element[] = [];
  for (let part = element.parentElement; part && !part.matches(end); part = part.parentElement) around.push(part);
  return around;
}

let stop = () => {};

/**
 * Keep the focus near a button that was pressed with the keyboard. Browsers take it away if the button is disabled, as while its
 * request is under way, or gone, as the first of the two that revoke a token. Give it back to the button once that is enabled again, or
 * else to a control nearby. A link or a button that opens another page has none, since everything around it is gone, too.
 */
function keep({ target, detail }: MouseEvent): void {
  const button = target instanceof Element ? target.closest("button") : null;
  stop();
  // A click of the mouse has a number above 0.
  if (!button || detail > 0 || button !== document.activeElement) return;
  const around = elementsAround(button, "main, body");
  const restore = () => {
    if (!isNowhere()) return;
    if (button.isConnected && !button.disabled) button.focus({ preventScroll: true });
    const waits = button.isConnected && button.hasAttribute("data-loading");
    if (isNowhere() && !waits) focusNear(around);
  };
  // A browser takes the focus from a disabled button only in the next frame.
  const watcher = new MutationObserver(() => requestAnimationFrame(() => setTimeout(restore)));
  const elsewhere = ({ target }: FocusEvent) => target !== button && stop();
  const timer = setTimeout(() => stop(), CARRIED_OUT_MS);
  stop = () => {
    watcher.disconnect();
    clearTimeout(timer);
    document.removeEventListener("focusin", elsewhere);
  };
  watcher.observe(document.body, { childList: true, subtree: true, attributeFilter: ["disabled", "data-loading"] });
  document.addEventListener("focusin", elsewhere);
}

// Capture the event, since React has not drawn anything yet when it gets here.
document.addEventListener("click", keep, true);
