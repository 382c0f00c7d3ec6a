import { useEffect, useRef, type RefObject } from "react";
import { NavigationType, useLocation, useNavigationType } from "react-router";

/**
 * After a link to another page, or a step back, focus the heading of that page once it is there, so that screen readers read it and
 * Tab continues from it. Browsers do that only for a page that they load. Do nothing if the user or the page itself moves the focus
 * first, if a page opens the same thing at another address, and if only the query changes. The browser draws no outline around the
 * heading unless the user has used the keyboard.
 */
export function useHeadingFocus(main: RefObject<HTMLElement | null>): void {
  const { pathname } = useLocation();
  const how = useNavigationType();
  const last = useRef(pathname);
  useEffect(() => {
    const [page, before] = [main.current, document.activeElement];
    const isOther = last.current !== pathname;
    last.current = pathname;
    if (!isOther || how === NavigationType.Replace || page === null || page.contains(before)) return;
    const watcher = new MutationObserver(look);
    function look() {
      const heading = page!.querySelector("h1");
      if (heading === null) return;
      end();
      heading.tabIndex = -1;
      heading.focus({ preventScroll: true });
    }
    function end() {
      watcher.disconnect();
      document.removeEventListener("focusin", end);
    }
    document.addEventListener("focusin", end);
    watcher.observe(page, { childList: true, subtree: true });
    look();
    return end;
  }, [main, pathname, how]);
}
