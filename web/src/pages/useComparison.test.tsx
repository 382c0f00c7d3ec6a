import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, renderHook, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { MemoryRouter, useLocation } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import { useComparison } from "./useComparison";

afterEach(() => void vi.restoreAllMocks());

const SHOWN = [
  { number: 1, id: "trl_a" },
  { number: 3, id: "trl_c" },
];
const ROWS = [{ number: 7, id: "trl_g" }];

/** Show an experiment with trials 1 and 3 in charts and trial 7 in the table. */
function shown() {
  return renderHook(() => ({ ...useComparison("exp_1", SHOWN, ROWS), at: useLocation() }), {
    wrapper: ({ children }: { children: ReactNode }) => (
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>{children}</MemoryRouter>
      </QueryClientProvider>
    ),
  });
}

it("compares trials that the page shows without asking the service", async () => {
  const asked = vi.spyOn(api, "trials");
  const { result } = shown();
  await act(() => result.current.mutateAsync([7, 1]));
  expect(result.current.at.pathname + result.current.at.search).toBe("/compare?trials=trl_g,trl_a");
  expect(asked).not.toHaveBeenCalled();
});

it("looks up the others", async () => {
  const asked = vi.spyOn(api, "trials").mockResolvedValue({ items: [{ number: 2000, id: "trl_x" }] } as never);
  const { result } = shown();
  await act(() => result.current.mutateAsync([2000, 1]));
  expect(result.current.at.search).toBe("?trials=trl_x,trl_a");
  expect(asked).toHaveBeenCalledWith("exp_1", { sort: "number", where: ["number?=[2000]"], page_size: 1 });
});

it("stays where it is if the service does not answer, and says why", async () => {
  vi.spyOn(api, "trials").mockRejectedValue(new Error("the service is away"));
  const { result } = shown();
  await act(() => result.current.mutateAsync([2000, 1]).catch(() => null));
  await waitFor(() => expect(result.current.error?.message).toBe("the service is away"));
  expect(result.current.at.pathname).toBe("/");
});
