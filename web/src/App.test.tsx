import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { act, render, screen } from "@testing-library/react";
import { MemoryRouter, Route, Routes } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api, ApiError, LOST_MS } from "./api/client";
import { App } from "./App";

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

function Page() {
  useQuery({ queryKey: ["down"], queryFn: () => Promise.reject(new ApiError(503, "starting")) });
  useQuery({ queryKey: ["asked"], queryFn: () => api.audit() });
  return <p>the page</p>;
}

it("the notice of a service that is down is not about the page that the sign-in form hides", async () => {
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: null } as never);
  const asked = vi.spyOn(api, "audit").mockResolvedValue({ items: [], next_page_token: null });
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={client}>
        <MemoryRouter>
          <Routes>
            <Route element={<App />}>
              <Route path="*" element={<Page />} />
            </Route>
          </Routes>
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  const notice = () => screen.queryByText("The service is not responding.");
  await vi.waitFor(() => expect(notice()).toBeTruthy());
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
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient({ defaultOptions: { queries: { retry: false } } })}>
        <MemoryRouter>
          <Routes>
            <Route element={<App />}>
              <Route path="*" element={<Read />} />
            </Route>
          </Routes>
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
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
