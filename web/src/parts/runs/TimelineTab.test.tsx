import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import TimelineTab from "./TimelineTab";

afterEach(() => void vi.restoreAllMocks());

it("names every reason for which processes start again", async () => {
  const read = {
    trials: [],
    devices: [],
    pauses: [],
    total: 0,
    duration_s: 60,
    totals: { running: 50, restarting: 10 },
  };
  vi.spyOn(api, "timeline").mockResolvedValue(read as never);
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <TimelineTab
          experiment={{ id: "exp_1", name: "a", state: "completed" } as Experiment}
          address={{ get: () => null, set: () => {} }}
          selected={null}
          onSelect={() => {}}
        />
      </QueryClientProvider>
    </MantineProvider>,
  );
  const restarting = await screen.findByText(/starting again/);
  for (const reason of ["pause", "failure", "number of ranks", "exploit"]) expect(restarting.title).toContain(reason);
});
