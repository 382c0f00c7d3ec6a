/** The clock of the service, by which the times in its answers are. That of the browser may differ by minutes. */

/** Clocks that differ by less count as equal: the header of an answer has whole seconds, and the answer takes a while to come. */
const CLOSE_MS = 3000;

let ahead = 0;

/** Read the service's clock from an answer that has just come. `sent`: when it was asked for, by the browser's clock. */
export function readClock(answer: Response, sent: number): void {
  const now = Date.now();
  if (now - sent > CLOSE_MS) return; // the machine may have slept, so that the time is an old one
  const found = Date.parse(answer.headers.get("date") ?? "") - now;
  if (Math.abs(found - ahead) > CLOSE_MS) ahead = Math.abs(found) > CLOSE_MS ? found : 0;
}

/** Return the time of the service, in milliseconds, at a time of the browser. */
export function serviceTime(browser = Date.now()): number {
  return browser + ahead;
}
