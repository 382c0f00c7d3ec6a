/** The time within which a service usually carries an action out. */
const CARRIED_OUT_MS = 10_000;
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

/** Return the button that opened the menu or the popover in which this element is; undefined if it is in none. */
export function openerOf(element: Element): HTMLElement | undefined {
  const id = element.closest("[role=menu], [role=dialog]")?.getAttribute("aria-labelledby");
  const button = id ? document.getElementById(id) : null;
  return button?.hasAttribute("aria-haspopup") ? button : undefined;
}

/** Return the elements around this one, from the inside out, within `end`. */
export function elementsAround(element: Element, end: string): Element[] {
  const around: Element[] = [];
  for (let part = element.parentElement; part && !part.matches(end); part = part.parentElement) around.push(part);
  return around;
}

/**
 * Call `restore` after each change of `part` while no element has the focus that `button` had, until the service has usually carried
 * an action out. End sooner once the user goes elsewhere, with the mouse, a finger or Tab. Return a function that ends it.
 */
export function whileLost(button: Element, part: Element, restore: () => void): () => void {
  let ended = false;
  const look = () => {
    if (!ended && isNowhere()) restore();
  };
  // A browser takes the focus from a disabled button only in the next frame.
  const watcher = new MutationObserver(() => requestAnimationFrame(() => setTimeout(look)));
  const onFocus = ({ target }: FocusEvent) => target !== button && end();
  const onKey = ({ key }: KeyboardEvent) => key === "Tab" && end();
  const end = () => {
    ended = true;
    watcher.disconnect();
    clearTimeout(timer);
    document.removeEventListener("focusin", onFocus);
    document.removeEventListener("keydown", onKey, true);
    document.removeEventListener("pointerdown", end, true);
  };
  const timer = setTimeout(end, CARRIED_OUT_MS);
  watcher.observe(part, { childList: true, subtree: true, attributeFilter: ["disabled", "data-loading"] });
  document.addEventListener("focusin", onFocus);
  document.addEventListener("keydown", onKey, true);
  document.addEventListener("pointerdown", end, true);
  return end;
}

let stop = () => {};

/**
 * Keep the focus near a button that was pressed with the keyboard. Browsers take it away if the button is disabled, as while its
 * request is under way, or gone, as the first of the two that revoke a token. Give it back to the button once that is enabled again, or
 * else to a control nearby. A button of a popover is gone once the popover is closed: then the button that opened it takes its place. A
 * link or a button that opens another page has none, since everything around it is gone, too.
 */
function keep({ target, detail }: MouseEvent): void {
  const button = target instanceof Element ? target.closest("button") : null;
  stop();
  // A click of the mouse has a number above 0.
  if (!button || detail > 0 || button !== document.activeElement) return;
  const buttons = [button, openerOf(button)].filter((one) => one !== undefined) as HTMLButtonElement[];
  const around = buttons.flatMap((one) => elementsAround(one, "main, body"));
  stop = whileLost(button, document.body, () => {
    const left = buttons.filter((one) => one.isConnected);
    for (const one of left) if (isNowhere() && !one.disabled) one.focus({ preventScroll: true });
    if (isNowhere() && !left.some((one) => one.hasAttribute("data-loading"))) focusNear(around);
  });
}

// Capture the event, since React has not drawn anything yet when it gets here.
document.addEventListener("click", keep, true);

let pressed: EventTarget | null = null;

/** Let Enter, held down, not press a button that has got the focus meanwhile, such as the second of the two that revoke a token. */
function pressOnce(event: KeyboardEvent): void {
  if (!event.repeat) pressed = event.target;
  else if (event.key === "Enter" && event.target !== pressed) event.preventDefault();
}

document.addEventListener("keydown", pressOnce, true);
