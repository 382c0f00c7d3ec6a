import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { afterEach, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import ParetoTab from "./ParetoTab";

afterEach(() => void vi.restoreAllMocks());

it("has the size of the front as the service counts it if only a sample of the trials is there", async () => {
  vi.spyOn(api, "hypervolume").mockResolvedValue({ metrics: [], x: [], y: [], front: 740, of: 2990 });
  const experiment = {
    id: "exp_1",
    name: "a",
    state: "completed",
    objectives: [
      { metric: "loss", mode: "min" },
      { metric: "latency", mode: "min" },
    ],
    counts: { pending: 0, running: 0, paused: 0, completed: 3000, stopped: 0, failed: 0, cancelled: 0 },
  } as unknown as Experiment;
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <ParetoTab
          experiment={experiment}
          sample={{ items: [], complete: false, places: new Map(), fronts: new Map(), total: 3000, trained: null }}
          trials={[]}
          fronts={new Map([[0, 1]])}
          byNumber={new Map()}
          where={[]}
          only={null}
          selected={null}
          pointed={null}
          onSelect={() => {}}
          onPoint={() => {}}
          colours={new Map()}
          address={{ get: () => null, set: () => {} }}
        />
      </QueryClientProvider>
    </MantineProvider>,
  );
  await screen.findByText("Pareto front · 740 of 2990 trials");
});
