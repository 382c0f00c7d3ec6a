import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { act, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { Suspense, type ReactNode } from "react";
import { MemoryRouter, Route, Routes } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api, ApiError, LOST_MS } from "./api/client";
import { App } from "./App";
import { lazily } from "./parts/common/lazily";

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

function Page() {
  useQuery({ queryKey: ["down"], queryFn: () => Promise.reject(new ApiError(503, "starting")) });
  useQuery({ queryKey: ["asked"], queryFn: () => api.audit() });
  return <p>the page</p>;
}

function show(page: ReactNode, client: QueryClient) {
  return render(
    <MantineProvider env="test">
      <QueryClientProvider client={client}>
        <MemoryRouter>
          <Routes>
            <Route element={<App />}>
              <Route path="*" element={page} />
            </Route>
          </Routes>
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
}

it("the notice of a service that is down is not about the page that the sign-in form hides", async () => {
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: null } as never);
  const asked = vi.spyOn(api, "audit").mockResolvedValue({ items: [], next_page_token: null });
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  show(<Page />, client);
  const notice = () => screen.queryByText("The service is not responding.");
  await waitFor(() => expect(notice()).toBeTruthy());
  asked.mockRejectedValue(new ApiError(401, "a token is needed"));
  await act(() => client.refetchQueries({ queryKey: ["asked"] }));
  await screen.findByLabelText(/Token/);
  expect(client.getQueryState(["down"])!.error).toBeTruthy();
  expect(notice()).toBeNull();
});

/** Show a page whose request has failed once, and is answered by `read` from then on. `other` answers another request of it. */
function showDown(read: () => Promise<string>, other: () => Promise<string> = () => Promise.resolve("")) {
  vi.useFakeTimers();
  vi.spyOn(api, "session").mockResolvedValue({ required: false, name: null } as never);
  const asked = vi.fn(read).mockRejectedValueOnce(new ApiError(503, "starting"));
  function Read() {
    const { data } = useQuery({ queryKey: ["read"], queryFn: asked, initialData: "what was there before" });
    return [data, useQuery({ queryKey: ["other"], queryFn: other }).data].map((text, i) => <p key={i}>{text}</p>);
  }
  show(<Read />, new QueryClient({ defaultOptions: { queries: { retry: false } } }));
  return asked;
}

it("waits for the answer of a service that is slow after it was down", async () => {
  const read = showDown(() => new Promise((resolve) => setTimeout(() => resolve("the answer"), 8000)));
  await act(() => vi.advanceTimersByTimeAsync(3000)); // the notice asks again
  expect(screen.getByText("The service is not responding.")).toBeTruthy();
  await act(() => vi.advanceTimersByTimeAsync(9000));
  expect(screen.getByText("the answer")).toBeTruthy();
  expect(read).toHaveBeenCalledTimes(2);
});

it("asks once more if a connection was cut on the way while the service was down", async () => {
  const read = showDown(() => Promise.resolve("the answer")).mockReturnValueOnce(new Promise(() => {}));
  await act(() => vi.advanceTimersByTimeAsync(3000));
  expect(read).toHaveBeenCalledTimes(2);
  await act(() => vi.advanceTimersByTimeAsync(LOST_MS + 3000));
  expect(screen.getByText("the answer")).toBeTruthy();
  expect(screen.queryByText("The service is not responding.")).toBeNull();
});

it("asks again for what was on its way when the service went down", async () => {
  const other = vi.fn(() => Promise.resolve("the other answer")).mockReturnValueOnce(new Promise(() => {}));
  showDown(() => Promise.resolve("the answer"), other);
  await act(() => vi.advanceTimersByTimeAsync(4000));
  expect(screen.getByText("the answer")).toBeTruthy();
  expect(screen.getByText("the other answer")).toBeTruthy();
  expect(other).toHaveBeenCalledTimes(2);
});

it("waits for the answer to each request that found the service down", async () => {
  const other = vi.fn(() => new Promise<string>((resolve) => setTimeout(() => resolve("the other answer"), 1000)));
  other.mockRejectedValueOnce(new ApiError(503, "starting"));
  showDown(() => Promise.resolve("the answer"), other);
  await act(() => vi.advanceTimersByTimeAsync(3100));
  expect(screen.getByText("the answer")).toBeTruthy();
  expect(screen.getByText("The service is not responding.")).toBeTruthy();
  await act(() => vi.advanceTimersByTimeAsync(1000));
  expect(screen.getByText("the other answer")).toBeTruthy();
  expect(screen.queryByText("The service is not responding.")).toBeNull();
  expect(other).toHaveBeenCalledTimes(2);
});

it("says that a page that was opened while the service is down will be shown", async () => {
  vi.useFakeTimers();
  const asked = vi.spyOn(api, "session").mockRejectedValue(new ApiError(0, "no answer"));
  const load = vi
    .fn<() => Promise<{ default: () => ReactNode }>>()
    .mockResolvedValue({ default: () => <p>the page</p> });
  const Settings = lazily(load.mockRejectedValueOnce(new TypeError("Failed to fetch")));
  show(
    <Suspense>
      <Settings />
    </Suspense>,
    new QueryClient({ defaultOptions: { queries: { retry: false } } }),
  );
  await act(() => vi.advanceTimersByTimeAsync(500));
  expect(screen.getByRole("alert").textContent).toContain("What you have opened is shown as soon as it responds.");
  asked.mockResolvedValue({ required: false, name: null } as never);
  fireEvent.click(screen.getByText("Try again"));
  await act(() => vi.advanceTimersByTimeAsync(100));
  expect(screen.getByText("the page")).toBeTruthy();
  expect(screen.queryByRole("alert")).toBeNull();
});

/** Show a page whose only request is answered by `read`, which may repeat it twice. A loop of requests ends after 50. */
function showOne(read: (asked: number) => Promise<string>, initialData?: string) {
  vi.useFakeTimers();
  vi.spyOn(api, "session").mockResolvedValue({ required: false, name: null } as never);
  const client = new QueryClient({ defaultOptions: { queries: { retry: initialData === undefined ? false : 2 } } });
  const asked = vi.fn(() => {
    if (asked.mock.calls.length > 50) client.clear();
    return read(asked.mock.calls.length);
  });
  function Read() {
    return <p>{useQuery({ queryKey: ["read"], queryFn: asked, initialData }).data ?? "nothing"}</p>;
  }
  show(<Read />, client);
  return { client, asked };
}

it("reads everything again once if the service asks for it while a request is about to be repeated", async () => {
  const { client, asked } = showOne(
    (nth) =>
      nth === 1
        ? Promise.reject(new ApiError(503, "starting"))
        : new Promise((resolve) => setTimeout(() => resolve("the answer"), 1000)),
    "what was there before",
  );
  await act(() => vi.advanceTimersByTimeAsync(500));
  expect(screen.getByText("The service is not responding.")).toBeTruthy();
  await act(async () => {
    // As the stream of changes does: a report comes, and then the service asks to read everything again.
    client.setQueryData(["read"], "a report");
    await client.cancelQueries({ queryKey: ["read"] });
    void client.invalidateQueries({ queryKey: ["read"] });
    await vi.advanceTimersByTimeAsync(4000);
  });
  expect(asked.mock.calls.length).toBeLessThan(5);
  expect(screen.getByText("the answer")).toBeTruthy();
});

it("asks every few seconds, and no more often, for a page that was opened while the service was down", async () => {
  const { asked } = showOne(
    (nth) =>
      new Promise((resolve, reject) =>
        setTimeout(() => (nth < 4 ? reject(new ApiError(503, "starting")) : resolve("the answer")), 100),
      ),
  );
  await act(() => vi.advanceTimersByTimeAsync(3000));
  expect(screen.getByText("The service is not responding.")).toBeTruthy();
  await act(() => vi.advanceTimersByTimeAsync(150)); // the page has asked again, and waits for the answer
  expect(asked).toHaveBeenCalledTimes(2);
  expect(screen.getByText("The service is not responding.")).toBeTruthy();
  await act(() => vi.advanceTimersByTimeAsync(12_000));
  expect(asked.mock.calls.length).toBeLessThan(8);
  expect(screen.getByText("the answer")).toBeTruthy();
});

it.each([
  ["a proxy gives up", new ApiError(504, "504 Gateway Timeout")],
  ["the service refuses", new ApiError(500, "database disk image is malformed")],
])("says that a part of the page is out of date while %s one request and others are answered", async (_, error) => {
  let down = false;
  let answers = 0;
  vi.useFakeTimers();
  vi.spyOn(api, "session").mockResolvedValue({ required: false, name: null } as never);
  function Read() {
    const part = { initialData: "before", refetchInterval: 4000 };
    useQuery({ queryKey: ["part"], queryFn: () => Promise.reject(error), ...part });
    const other = () => (down ? Promise.reject(new ApiError(0, "no answer")) : Promise.resolve(`live ${++answers}`));
    return <p>{useQuery({ queryKey: ["other"], queryFn: other, refetchInterval: 3000 }).data}</p>;
  }
  show(<Read />, new QueryClient({ defaultOptions: { queries: { retry: false } } }));
  await act(() => vi.advanceTimersByTimeAsync(10_000));
  const words = `A part of this page may be out of date. The service sends no newer data for it: ${error.message}`;
  for (let s = 0; s < 20; s++) {
    expect(screen.getByRole("alert").textContent).toBe(words);
    await act(() => vi.advanceTimersByTimeAsync(1000));
  }
  down = true;
  await act(() => vi.advanceTimersByTimeAsync(7000));
  for (let s = 0; s < 20; s++) {
    expect(screen.getByRole("alert").textContent).toContain("The service is not responding. This page");
    await act(() => vi.advanceTimersByTimeAsync(1000));
  }
});

it("says that the page is out of date while the service refuses to give what is shown", async () => {
  const { client } = showOne(
    (nth) =>
      nth <= 3 ? Promise.reject(new ApiError(500, "database disk image is malformed")) : Promise.resolve("the answer"),
    "what was there before",
  );
  await act(() => vi.advanceTimersByTimeAsync(3500));
  expect(screen.getByText("what was there before")).toBeTruthy();
  expect(screen.getByRole("alert").textContent).toBe(
    "This page may be out of date. The service sends no newer data: database disk image is malformed",
  );
  await act(() => client.refetchQueries({ queryKey: ["read"] }));
  await act(() => vi.advanceTimersByTimeAsync(100));
  expect(screen.getByText("the answer")).toBeTruthy();
  expect(screen.queryByRole("alert")).toBeNull();
});

it("the height of the bar at the top is told only if it is not the usual one", () => {
  let tell = (_: unknown) => {};
  vi.stubGlobal(
    "ResizeObserver",
    class {
      constructor(told: typeof tell) {
        tell = told;
      }
      observe() {}
      disconnect() {}
    },
  );
  vi.spyOn(api, "session").mockReturnValue(new Promise(() => {}));
  const { style } = document.documentElement;
  const heightsOf = (...sizes: number[]) => {
    const { unmount } = show(<p>the page</p>, new QueryClient());
    const heights = sizes.map((blockSize) => {
      tell([{ borderBoxSize: [{ blockSize }] }]);
      return style.getPropertyValue("--app-top");
    });
    unmount();
    return heights;
  };
  // A new bar in a wide window does not keep the height of the one before it.
  const heights = [heightsOf(44, 77.6, 44), heightsOf(77.6), heightsOf(44)];
  vi.unstubAllGlobals();
  expect(heights).toEqual([["", "78px", "44px"], ["78px"], [""]]);
});
