import { useCallback } from "react";
import { useSearchParams } from "react-router";

export interface Address {
  get: (key: string) => string | null;
  /** Change some of what is chosen; null leaves a key out. The page neither scrolls nor gets an entry in the history. */
  set: (changes: Readonly<Record<string, string | null>>) => void;
}

/** The selections of this page, kept in its address. */
export function useAddress(): Address {
  const [search, setSearch] = useSearchParams();
  const set = useCallback(
    (changes: Readonly<Record<string, string | null>>) =>
      setSearch(
        (old) => {
          const next = new URLSearchParams(old);
          for (const [key, value] of Object.entries(changes)) {
            if (value === null || value === "") next.delete(key);
            else next.set(key, value);
          }
          return next;
        },
        { replace: true, preventScrollReset: true },
      ),
    [setSearch],
  );
  return { get: (key) => search.get(key), set };
}
