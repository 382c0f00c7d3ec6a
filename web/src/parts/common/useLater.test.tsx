import { act, renderHook } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { useLater } from "./useLater";

it("renders what comes later once, and not again when it would have been too late", async () => {
  vi.useFakeTimers();
  const rendered = vi.fn();
  const { result } = renderHook(() => {
    rendered();
    return useLater();
  });
  expect(result.current).toBe(true);
  const renders = rendered.mock.calls.length;
  await act(() => vi.advanceTimersByTimeAsync(5000));
  expect(rendered).toHaveBeenCalledTimes(renders);
  vi.useRealTimers();
});
