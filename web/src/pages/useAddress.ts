import { useCallback, useLayoutEffect } from "react";
import { useLocation, useSearchParams } from "react-router";

type Choices = Readonly<Record<string, string | null>>;

export interface Address {
  get: (key: string) => string | null;
  /**
   * Change some of the selections; null removes a key. The page does not scroll. The history gets an entry if another tab is shown, or
   * if the panel of a trial opens or closes. Pass a function if the change depends on the previous selections, since some changes may
   * not have been drawn yet.
   */
  set: (changes: Choices | ((get: (key: string) => string | null) => Choices)) => void;
}

/**
 * The search strings that this page has set, from the one that is drawn to the newest. React draws a new address when it has time,
 * and the next change may come before that, from any part of the page. So all parts share this list. `from` is that of the previous
 * entry of the history, if this page has added the newest one.
 */
let given: { path: string; searches: string[]; from: string | null } = { path: "", searches: [], from: null };

/** Drop the search strings that are older than the one that is drawn; all of them if the address was changed in another way. */
function drawn(path: string, search: string, from: string | null): void {
  const at = given.path === path ? given.searches.lastIndexOf(search) : -1;
  const waiting = at < 0 ? [] : given.searches.slice(at + 1);
  given = { path, searches: [search, ...waiting], from: waiting.length > 0 ? given.from : from };
}

/** The place on the page that a search string leads to: a tab, with or without the panel of a trial. */
const placeOf = (search: URLSearchParams) => `${search.get("tab")} ${search.has("trial")}`;

/** The selections of this page, kept in its address. */
export function useAddress(): Address {
  const location = useLocation();
  const { pathname } = location;
  const from = (location.state as { from?: string } | null)?.from ?? null;
  const [search, setSearch] = useSearchParams();
  useLayoutEffect(() => drawn(pathname, search.toString(), from), [pathname, search, from]);
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
      // Nor does the history need an entry if the previous one shows the same as this one, before or after the change.
      const shown = given.from === newest || given.from === next.toString();
      const replace = shown || placeOf(next) === placeOf(new URLSearchParams(newest));
      if (!replace) given.from = newest;
      setSearch(next, { replace, preventScrollReset: true, state: { from: given.from } });
    },
    [setSearch],
  );
  return { get: (key) => search.get(key), set };
}
