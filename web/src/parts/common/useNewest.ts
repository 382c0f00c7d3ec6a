import { useCallback, useLayoutEffect, useRef } from "react";

/**
 * Return two functions for keys that go from one trial to the next, and for clicks: the newest trial that was chosen, and one that
 * chooses another. On a busy page, several keys may be pressed before the first choice is drawn as `selected`.
 */
export function useNewest(
  selected: number | null,
  onSelect: (number: number) => void,
): [() => number | null, (number: number) => void] {
  const asked = useRef<number[]>([]);
  useLayoutEffect(() => {
    // If something else has chosen a trial in the meantime, that one counts.
    const at = selected === null ? -1 : asked.current.lastIndexOf(selected);
    asked.current = at < 0 ? [] : asked.current.slice(at + 1);
  }, [selected]);
  const newest = useCallback(() => asked.current.at(-1) ?? selected, [selected]);
  const choose = (number: number) => {
    if (number !== newest()) asked.current.push(number);
    onSelect(number);
  };
  return [newest, choose];
}
