import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { api } from "./client";
import { serviceTime } from "./clock";

beforeEach(() => void vi.useFakeTimers({ now: Date.parse("2026-03-01T10:00:00Z") }));
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** Ask a service with this clock, which takes some milliseconds to answer, and return how far the page takes it to be ahead. */
async function aheadOf(date: string | null, takes = 0): Promise<number> {
  vi.stubGlobal("fetch", async () => {
    await new Promise((done) => setTimeout(done, takes));
    return new Response('{"required": false}', { headers: date === null ? {} : { date } });
  });
  const asked = api.session();
  await vi.advanceTimersByTimeAsync(takes);
  await asked;
  return (serviceTime() - Date.now()) / 1000;
}

it("is read from the service's answers", async () => {
  expect(await aheadOf("Sun, 01 Mar 2026 10:05:00 GMT")).toBe(300);
  expect(await aheadOf("Sun, 01 Mar 2026 10:04:58 GMT")).toBe(300); // the header has whole seconds
  expect(await aheadOf(null)).toBe(300);
  expect(await aheadOf("Sun, 01 Mar 2026 09:00:00 GMT")).toBe(-3600);
  expect(await aheadOf("Sun, 01 Mar 2026 09:59:59 GMT")).toBe(0);
});

it("is not read from an answer that was on its way while the machine slept", async () => {
  expect(await aheadOf("Sun, 01 Mar 2026 10:00:00 GMT", 3_600_000)).toBe(0);
});
