import { useCallback, useLayoutEffect, useRef } from "react";
import { useSearchParams } from "react-router";

type Choices = Readonly<Record<string, string | null>>;

export interface Address {
  get: (key: string) => string | null;
  /**
   * Change some of what is chosen; null leaves a key out. The page neither scrolls nor gets an entry in the history. What depends on
   * what was chosen before is given as a function: there may be changes that have not been drawn yet.
   */
  set: (changes: Choices | ((get: (key: string) => string | null) => Choices)) => void;
}

/** The selections of this page, kept in its address. */
export function useAddress(): Address {
  const [search, setSearch] = useSearchParams();
  // React draws a new address when it has time, and the next change may come before that.
  const newest = useRef(search);
  useLayoutEffect(() => {
    newest.current = search;
  }, [search]);
  const set = useCallback<Address["set"]>(
    (changes) => {
      const next = new URLSearchParams(newest.current);
      const chosen = typeof changes === "function" ? changes((key) => newest.current.get(key)) : changes;
      for (const [key, value] of Object.entries(chosen)) {
        if (value === null || value === "") next.delete(key);
        else next.set(key, value);
      }
      newest.current = next;
      setSearch(next, { replace: true, preventScrollReset: true });
    },
    [setSearch],
  );
  return { get: (key) => search.get(key), set };
}
