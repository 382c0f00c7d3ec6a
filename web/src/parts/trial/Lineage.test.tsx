import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Lineage as Found, TrialWithSegments } from "../../api/types";
import { Lineage } from "./Lineage";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

const TRIAL = {
  id: "trl_1",
  number: 1,
  iteration: 9,
  best_iteration: 4,
  segments: [{ cause: "start" }, { cause: "exploit" }],
} as TrialWithSegments;

function found(end_iteration: number): Found {
  const item = { id: "a", trial_id: "trl_1", trial_number: 1, ordinal: 1, cause: "start", start_iteration: 0 };
  return {
    trial_id: "trl_1",
    trial_number: 1,
    items: [{ ...item, end_iteration, source_trial_number: null, params: { lr: 0.1 }, changes: {} }],
    schedule: [],
  } as unknown as Found;
}

it("never shows the newest weights as those of the best value while it reads", async () => {
  vi.spyOn(api, "lineage").mockImplementation((_, __, at) =>
    at === "best" ? new Promise(() => undefined) : Promise.resolve(found(9)),
  );
  const client = new QueryClient();
  const page = (weights: string | null) => (
    <MantineProvider>
      <QueryClientProvider client={client}>
        <MemoryRouter>
          <Lineage
            trial={TRIAL}
            labels={{}}
            onSelect={() => undefined}
            address={{ get: () => weights, set: () => undefined }}
          />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>
  );
  const { rerender } = render(page(null));
  await screen.findByText(/iterations 1 to 9/);
  rerender(page("best"));
  expect(screen.queryByText(/iterations 1 to 9/)).toBeNull();
  rerender(page(null));
  expect(screen.getByText(/iterations 1 to 9/)).toBeTruthy();
});

it("follows the newest segment of a trial that trains", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  try {
    const read = vi.spyOn(api, "lineage").mockResolvedValueOnce(found(12)).mockResolvedValue(found(40));
    render(
      <MantineProvider>
        <QueryClientProvider client={new QueryClient()}>
          <MemoryRouter>
            <Lineage
              trial={{ ...TRIAL, state: "running" }}
              labels={{}}
              onSelect={() => undefined}
              address={{ get: () => null, set: () => undefined }}
            />
          </MemoryRouter>
        </QueryClientProvider>
      </MantineProvider>,
    );
    await screen.findByText(/iterations 1 to 12/);
    await vi.advanceTimersByTimeAsync(10_000);
    await screen.findByText(/iterations 1 to 40/);
    expect(read.mock.calls.length).toBeGreaterThan(1);
  } finally {
    vi.useRealTimers();
  }
});
