import { useCallback, useLayoutEffect } from "react";
import { useLocation, useSearchParams } from "react-router";

type Choices = Readonly<Record<string, string | null>>;

export interface Address {
  get: (key: string) => string | null;
  /**
   * Change some of the selections; null removes a key. The page does not scroll, and the history gets no entry. Pass a function if
   * the change depends on the previous selections, since some changes may not have been drawn yet.
   */
  set: (changes: Choices | ((get: (key: string) => string | null) => Choices)) => void;
}

/**
 * The search strings that this page has set, from the one that is drawn to the newest. React draws a new address when it has time,
 * and the next change may come before that, from any part of the page. So all parts share this list.
 */
let given: { path: string; searches: string[] } = { path: "", searches: [] };

/** Drop the search strings that are older than the one that is drawn; all of them if the address was changed in another way. */
function drawn(path: string, search: string): void {
  const at = given.path === path ? given.searches.lastIndexOf(search) : -1;
  given = { path, searches: at < 0 ? [search] : given.searches.slice(at) };
}

/** The selections of this page, kept in its address. */
export function useAddress(): Address {
  const { pathname } = useLocation();
  const [search, setSearch] = useSearchParams();
  useLayoutEffect(() => drawn(pathname, search.toString()), [pathname, search]);
  const set = useCallback<Address["set"]>(
    (changes) => {
      const newest = given.searches.at(-1) ?? "";
      const next = new URLSearchParams(newest);
      const chosen = typeof changes === "function" ? changes((key) => next.get(key)) : changes;
      for (const [key, value] of Object.entries(chosen)) {
        if (value === null || value === "") next.delete(key);
        else next.set(key, value);
      }
      if (next.toString() === newest) return;
      given.searches.push(next.toString());
      setSearch(next, { replace: true, preventScrollReset: true });
    },
    [setSearch],
  );
  return { get: (key) => search.get(key), set };
}
