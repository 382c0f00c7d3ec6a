import { startTransition, useOptimistic } from "react";

/**
 * Return a value of the address as a control shows it, and a function that changes it. The address is drawn when there is time. If
 * the control showed the old value until then, the browser would ignore a click on that value.
 */
export function useAtOnce<T>(value: T, onChange: (value: T) => void): [T, (value: T) => void] {
  const [shown, show] = useOptimistic(value);
  const change = (next: T) =>
    startTransition(() => {
      show(next);
      onChange(next);
    });
  return [shown, change];
}
