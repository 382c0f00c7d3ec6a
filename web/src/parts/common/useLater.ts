import { useDeferredValue, useEffect, useState } from "react";

/** React delays deferred work for as long as there is other work; on a busy machine, that is too long. */
const AT_LATEST_MS = 1000;

/** Return false until the urgent parts of a page are drawn, so that the rest of the page does not delay them. */
export function useLater(): boolean {
  const deferred = useDeferredValue(true, false);
  const [waited, setWaited] = useState(false);
  useEffect(() => {
    if (deferred) return; // the page need not be rendered once more
    const timer = setTimeout(() => setWaited(true), AT_LATEST_MS);
    return () => clearTimeout(timer);
  }, [deferred]);
  return deferred || waited;
}
