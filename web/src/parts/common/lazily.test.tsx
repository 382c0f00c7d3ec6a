import { act, render, screen } from "@testing-library/react";
import { Component, Suspense, type ReactNode } from "react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { api, ApiError } from "../../api/client";
import { lazily } from "./lazily";

const GONE = new TypeError("Failed to fetch dynamically imported module: assets/TimelineTab-1.js");
const DOWN = new ApiError(0, "The service is not responding.");

class Boundary extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    return this.state.error ? <p>{this.state.error.message}</p> : this.props.children;
  }
}

/** Show a part of a page that cannot be loaded. */
function show() {
  const Part = lazily(() => Promise.reject<{ default: () => ReactNode }>(GONE));
  return act(() =>
    render(
      <Boundary>
        <Suspense fallback={<p>loading</p>}>
          <Part />
        </Suspense>
      </Boundary>,
    ),
  );
}

const reload = vi.fn<() => void>();

beforeEach(() => {
  vi.useFakeTimers();
  reload.mockReset();
  vi.spyOn(window.location, "reload").mockImplementation(reload);
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

it("the page is loaded again once the service responds if a part of it could not be loaded", async () => {
  const asked = vi.spyOn(api, "session").mockRejectedValue(DOWN);
  await show();
  await act(() => vi.advanceTimersByTimeAsync(10_000));
  expect(reload).not.toHaveBeenCalled();
  asked.mockResolvedValue({ name: "ada" } as Awaited<ReturnType<typeof api.session>>);
  await act(() => vi.advanceTimersByTimeAsync(2000));
  expect(reload).toHaveBeenCalledTimes(1);
  expect(screen.getByText("loading")).toBeTruthy();
});

it("the page is not loaded again and again if that does not help", async () => {
  vi.spyOn(api, "session").mockRejectedValue(new ApiError(401, "Sign in."));
  vi.spyOn(performance, "getEntriesByType").mockReturnValue([{ type: "reload" } as PerformanceNavigationTiming]);
  vi.spyOn(performance, "now").mockReturnValue(3000);
  vi.spyOn(console, "error").mockImplementation(() => {});
  await show();
  await act(() => vi.advanceTimersByTimeAsync(0));
  expect(screen.getByText(GONE.message)).toBeTruthy();
  expect(reload).not.toHaveBeenCalled();
});
