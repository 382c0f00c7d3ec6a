import { useCallback, useLayoutEffect } from "react";
import { useLocation, useNavigate, useSearchParams } from "react-router";

type Choices = Readonly<Record<string, string | null>>;

export interface Address {
  get: (key: string) => string | null;
  /**
   * Change some of the selections; null removes a key. The page does not scroll. The history gets an entry if another tab is shown, or
   * if the panel of a trial opens. If the panel closes, the page goes back to the entry from before it was opened, and keeps what was
   * selected since then; without such an entry, the history gets a new one. Pass a function if the change depends on the previous
   * selections, since some changes may not have been drawn yet.
   */
  set: (changes: Choices | ((get: (key: string) => string | null) => Choices)) => void;
}

/**
 * The search strings that this page has set, from the one that is drawn to the newest. React draws a new address when it has time,
 * and the next change may come before that, from any part of the page. So all parts share this list. `from` is the search string of
 * the previous entry of the history, if this page has added the newest one. `back` is the place to which the page goes back, until
 * that is drawn; the newest search string then belongs there.
 */
let given: { path: string; searches: string[]; from: string | null; back: string | null } = {
  path: "",
  searches: [],
  from: null,
  back: null,
};

/**
 * Drop the search strings that are older than the one that is drawn; all of them if the address was changed in another way. Return true
 * if the page has gone back to what is drawn.
 */
function drawn(path: string, search: string, from: string | null): boolean {
  const { searches, back } = given;
  const same = given.path === path;
  if (same && back === placeOf(search)) {
    given = { path, searches: [search, searches.at(-1)!], from, back: null };
    return true;
  }
  const at = same ? searches.lastIndexOf(search) : -1;
  const waiting = at < 0 ? [] : searches.slice(at + 1);
  const isWaiting = waiting.length > 0;
  given = { path, searches: [search, ...waiting], from: isWaiting ? given.from : from, back: isWaiting ? back : null };
  return false;
}

/** The place on the page that a search string leads to: a tab, with or without the panel of a trial. */
function placeOf(search: string): string {
  const params = new URLSearchParams(search);
  return `${params.get("tab")} ${params.has("trial")}`;
}

/** The selections of this page, kept in its address. */
export function useAddress(): Address {
  const location = useLocation();
  const { pathname } = location;
  const from = (location.state as { from?: string } | null)?.from ?? null;
  const [search, setSearch] = useSearchParams();
  const navigate = useNavigate();
  const write = useCallback(
    (next: string, before: string) => {
      const replace = placeOf(next) === placeOf(before);
      if (!replace) {
        given.from = before;
        // Going back here closes the trial that opens now. The browser must not scroll to what is shown now.
        if (new URLSearchParams(next).has("trial")) window.history.scrollRestoration = "manual";
      }
      setSearch(next, { replace, preventScrollReset: true, state: { from: given.from } });
    },
    [setSearch],
  );
  useLayoutEffect(() => {
    window.history.scrollRestoration = "auto"; // of this entry alone; see `write`
    const now = search.toString();
    if (!drawn(pathname, now, from)) return;
    const newest = given.searches.at(-1)!;
    if (newest !== now) write(newest, now);
  }, [pathname, search, from, write]);
  const set = useCallback<Address["set"]>(
    (changes) => {
      const newest = given.searches.at(-1) ?? "";
      const params = new URLSearchParams(newest);
      const wasOpen = params.has("trial");
      const chosen = typeof changes === "function" ? changes((key) => params.get(key)) : changes;
      for (const [key, value] of Object.entries(chosen)) {
        if (value === null || value === "") params.delete(key);
        else params.set(key, value);
      }
      const next = params.toString();
      if (next === newest) return;
      given.searches.push(next);
      if (given.back !== null) return;
      const closes = wasOpen && !params.has("trial");
      if (closes && given.from !== null && placeOf(given.from) === placeOf(next)) {
        given.back = placeOf(next);
        void navigate(-1);
      } else write(next, newest);
    },
    [navigate, write],
  );
  return { get: (key) => search.get(key), set };
}
