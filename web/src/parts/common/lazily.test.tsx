import { act, render, screen } from "@testing-library/react";
import { Component, Suspense, type ReactNode } from "react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { api, ApiError } from "../../api/client";
import { askNow, lazily, useIsWaiting } from "./lazily";

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

function Notice() {
  return useIsWaiting() && <p>waits for the service</p>;
}

type Load = () => Promise<{ default: () => ReactNode }>;

/** Show a part of a page that cannot be loaded, or only by `load`. */
function show(load: Load = () => Promise.reject(GONE)) {
  const Part = lazily(load);
  return act(() =>
    render(
      <Boundary>
        <Notice />
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

it("a part that could not be loaded while the service was down is shown once it responds", async () => {
  const asked = vi.spyOn(api, "session").mockRejectedValue(DOWN);
  const load = vi.fn<Load>().mockResolvedValue({ default: () => <p>the part</p> });
  await show(load.mockRejectedValueOnce(GONE).mockRejectedValueOnce(GONE));
  await act(() => vi.advanceTimersByTimeAsync(5000));
  expect(screen.getByText("waits for the service")).toBeTruthy();
  // It goes away again while the part is loaded.
  asked.mockResolvedValueOnce({} as never);
  await act(() => vi.advanceTimersByTimeAsync(2000));
  expect(load).toHaveBeenCalledTimes(2);
  expect(screen.getByText("waits for the service")).toBeTruthy();
  asked.mockResolvedValue({} as never);
  askNow();
  await act(() => vi.advanceTimersByTimeAsync(0));
  expect(screen.getByText("the part")).toBeTruthy();
  expect(screen.queryByText("waits for the service")).toBeNull();
  expect(reload).not.toHaveBeenCalled();
});

it("the page is loaded again once the service responds if a part of it is gone", async () => {
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
  expect(screen.queryByText("waits for the service")).toBeNull();
  expect(reload).not.toHaveBeenCalled();
});
