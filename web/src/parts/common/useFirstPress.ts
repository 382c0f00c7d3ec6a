import { useLayoutEffect, useRef } from "react";

/**
 * Return a function that does `act`, but not again before it has ended. A second press may come before the page can show that the
 * first one is `pending`, as on a slow machine. Each press must change what the page shows, as a mutation does.
 */
export function useFirstPress(pending: boolean, act: () => void): () => void {
  const pressed = useRef(false);
  useLayoutEffect(() => {
    pressed.current = pending;
  });
  return () => {
    if (pressed.current) return;
    pressed.current = true;
    act();
  };
}
