import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, render, screen, within, waitFor } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api, ApiError } from "../api/client";
import type { Cluster } from "../api/types";
import ClusterPage, { joinWords, summary } from "./ClusterPage";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

const use = { cpus: 8, cpus_in_use: 2, gpus: 2, gpus_in_use: 1 };
const of = (trial: number) => ({
  experiment_id: "exp_1",
  trial_id: `trl_${trial}`,
  trial_number: trial,
  segment_id: `seg_${trial}`,
  since: "2026-01-31T12:00:00Z",
  resources: { CPU: 1, GPU: 1 },
});
const rank = (number: number, node: string, gpu: string) => ({
  rank: number,
  node,
  host: `host-${node}`,
  pid: 1,
  gpus: [gpu],
});
const CLUSTER: Cluster = {
  cpus: 16,
  cpus_in_use: 4,
  gpus: 4,
  gpus_in_use: 3,
  nodes: ["a", "b"].map((id) => ({ id, name: `host-${id}`, address: `10.0.0.${id}`, ...use })),
  may_join: [{ count: 3, cpus: 16, gpus: 4 }],
  agents: [],
  groups: [{ ...of(3), ranks: [rank(0, "a", "0"), rank(1, "b", "1")] }],
  waiting: [
    {
      ...of(4),
      position: 1,
      workers: 2,
      priority: 5,
      reserved: true,
      reason: "needs 2 free GPUs, and `ray status` shows 1",
      nodes: [],
    },
  ],
  experiments: [{ experiment_id: "exp_1", priority: 5, weight: 1, share: 0.75, groups: 1, waiting: 1 }],
};

const show = (client = new QueryClient()) =>
  render(
    <MantineProvider>
      <MemoryRouter>
        <QueryClientProvider client={client}>
          <ClusterPage />
        </QueryClientProvider>
      </MemoryRouter>
    </MantineProvider>,
  );

describe("the page of the cluster", () => {
  it("shows the name of an experiment that was created after the page was opened", async () => {
    vi.spyOn(api, "cluster").mockResolvedValue(CLUSTER);
    vi.spyOn(api, "experiments").mockImplementation((query) =>
      Promise.resolve({ items: query?.state === "running" ? [{ id: "exp_1", name: "digits" }] : [] } as never),
    );
    show();
    expect((await screen.findAllByText("digits")).length).toBeGreaterThan(0);
  });

  it("says what is in use, and what waits and why", async () => {
    vi.spyOn(api, "cluster").mockResolvedValue(CLUSTER);
    vi.spyOn(api, "experiments").mockResolvedValue({ items: [{ id: "exp_1", name: "digits" }] } as never);
    show();
    expect((await screen.findByRole("status")).textContent).toBe(
      "3 of 4 GPUs and 4 of 16 CPUs are in use on 2 nodes. 1 trial runs, 1 waits.",
    );
    expect(screen.getByText("Up to 3 more nodes with 16 CPUs and 4 GPUs each may join.")).toBeTruthy();
    await within(screen.getByRole("region", { name: "Waiting" })).findByText("digits");
    const rows = (region: string) =>
      within(screen.getByRole("region", { name: region }))
        .getAllByRole("row")
        .slice(1)
        .map((row) => row.textContent);
    expect(rows("Nodes")).toEqual([
      "host-adigits trial 3, rank 0 (GPU 0) 2 of 8 1 of 210.0.0.a",
      "host-bdigits trial 3, rank 1 (GPU 1) 2 of 8 1 of 210.0.0.b",
    ]);
    expect(rows("Waiting")[0]).toMatch(
      /^1digitstrial 4needs 2 free GPUs, and ray status shows 1room is reserved for it2 × 1 GPU, 1 CPU.*5$/,
    );
    expect(rows("Running")[0]).toMatch(/^digitstrial 32 × 1 GPU, 1 CPUhost-a, host-b0, 1/);
    expect(rows("Shares")).toEqual(["digits5175 %11"]);
  });

  it("says that it is out of date once the driver has stopped", async () => {
    const asked = vi.spyOn(api, "cluster").mockResolvedValue(CLUSTER);
    vi.spyOn(api, "experiments").mockResolvedValue({ items: [] } as never);
    const client = new QueryClient();
    show(client);
    await screen.findByRole("region", { name: "Nodes" });
    expect(screen.queryByRole("alert")).toBeNull();
    asked.mockRejectedValue(new ApiError(503, "no driver host answers"));
    await act(() => client.refetchQueries({ queryKey: ["cluster"] }));
    expect((await screen.findByRole("alert")).textContent).toBe(
      "No driver answers at the moment. What is shown here was read just now. The service says: no driver host answers.",
    );
    asked.mockResolvedValue(CLUSTER);
    await act(() => client.refetchQueries({ queryKey: ["cluster"] }));
    await waitFor(() => expect(screen.queryByRole("alert")).toBeNull());
  });

  it("lists the experiments that scripts drive, since the driver does not know their trials", async () => {
    const one = (id: string, source: string, more: object = {}) => ({
      id,
      name: id,
      source,
      abandoned: false,
      counts: { running: 4 },
      scaling: { num_workers: 1, max_workers: null, resources_per_worker: { CPU: 0.5 }, use_gpu: false },
      ...more,
    });
    const items = [
      one("by a script", "python"),
      one("asked", "study", { counts: { running: 0 } }),
      one("far away", "python", { executor: "agents" }),
      one("left", "python", { abandoned: true }),
      one("by this service", "api"),
      one("taken over", "adopted"),
    ];
    const asked = vi
      .spyOn(api, "experiments")
      .mockImplementation(((query: { state?: string }) =>
        Promise.resolve({ items: query.state === "running" ? items : [] })) as never);
    vi.spyOn(api, "cluster").mockResolvedValue({ ...CLUSTER, groups: [], waiting: [], experiments: [] });
    show();
    const listed = async () =>
      within(await screen.findByRole("region", { name: "Driven by scripts" }))
        .getAllByRole("row")
        .slice(1)
        .map((row) => row.textContent);
    expect(await listed()).toEqual(["by a script42 CPUs", "asked0nothing", "far away4nothing"]);
    expect(screen.getByRole("link", { name: "by a script" }).getAttribute("href")).toBe("/experiments/by a script");
    expect(screen.getByRole("status").textContent).toContain("No trial of this service is running or waiting.");
    cleanup();
    vi.spyOn(api, "cluster").mockRejectedValue(new ApiError(503, "no driver is running"));
    show();
    expect(await listed()).toHaveLength(3);
    cleanup();
    asked.mockResolvedValue({ items: [one("by this service", "api")] } as never);
    show();
    await screen.findByText(/The cluster is shown while a driver runs/);
    expect(screen.queryByRole("region", { name: "Driven by scripts" })).toBeNull();
  });

  it("lists the agents, and what each trains and asks for", async () => {
    const far = { experiment_id: "exp_1", trial_id: "trl_7", trial_number: 7, segment_id: "seg_7" };
    vi.spyOn(api, "cluster").mockResolvedValue({
      ...CLUSTER,
      agents: [
        { name: "lab-3:12", experiment_id: "exp_1", running: 1, asking: 0 },
        { name: "lab-4:9", experiment_id: "exp_1", running: 0, asking: 2 },
      ],
      groups: [
        {
          ...far,
          since: "2026-01-31T12:00:00Z",
          resources: { agent: 1 },
          ranks: [{ rank: 0, node: "lab-3:12", host: "lab-3:12", pid: 0, gpus: [] }],
        },
      ],
    });
    vi.spyOn(api, "experiments").mockResolvedValue({ items: [{ id: "exp_1", name: "digits" }] } as never);
    show();
    const rows = (region: string) =>
      within(screen.getByRole("region", { name: region }))
        .getAllByRole("row")
        .slice(1)
        .map((row) => row.textContent);
    await within(await screen.findByRole("region", { name: "Agents" })).findAllByText("digits");
    expect(rows("Agents")).toEqual(["lab-3:12digits1–", "lab-4:9digits02 trials"]);
    expect(rows("Running")[0]).toMatch(/^digitstrial 71 × 1 agentlab-3:12–/);
  });

  it("names the nodes of each type that may join", () => {
    const types = [
      { count: 1, cpus: 0, gpus: 1 },
      { count: 2, cpus: 64, gpus: 0 },
    ];
    expect(joinWords(types)).toBe("Up to 1 more node with 1 GPU, and up to 2 with 64 CPUs each may join.");
  });

  it("has the singular for one GPU", () => {
    expect(summary({ ...CLUSTER, gpus: 1, gpus_in_use: 0 })).toMatch(/^0 of 1 GPU and 4 of 16 CPUs are in use /);
  });

  it("says if nothing waits, and if there are no GPUs", () => {
    expect(summary({ ...CLUSTER, gpus: 0, nodes: [CLUSTER.nodes[0]!], groups: [], waiting: [] })).toBe(
      "4 of 16 CPUs are in use on 1 node (CPUs: 2 by running trials, 2 by something other than trials). No trial of this service is running or waiting.",
    );
  });

  it("counts starting trials once: they hold CPUs, but do not run yet", () => {
    const starting = { ...CLUSTER.waiting[0]!, nodes: ["a", "a"], resources: { CPU: 0.5 } };
    expect(summary({ ...CLUSTER, gpus: 0, cpus_in_use: 5, waiting: [starting] })).toBe(
      "5 of 16 CPUs are in use on 2 nodes (CPUs: 3 by running trials, 1 by starting trials, 1 by something other than trials). " +
        "1 trial runs, 1 starts, no trial waits.",
    );
  });
});
