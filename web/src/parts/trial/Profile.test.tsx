import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api, ApiError } from "../../api/client";
import type { Profile as Found, TrialWithSegments } from "../../api/types";
import Profile, { ranks, shortly } from "./Profile";

afterEach(() => vi.restoreAllMocks());

const SEGMENT = { ordinal: 1, placement: { ranks: [{ rank: 0 }, { rank: 1 }] } };
const TRIAL = { id: "trl_1", number: 4, state: "running", segments: [SEGMENT] } as unknown as TrialWithSegments;

const CPU: Found = {
  segment: 1,
  rank: 1,
  kind: "cpu",
  duration_s: 5,
  complete: false,
  notes: ["Child processes are not sampled."],
  cpu: {
    samples: 498,
    rate_hz: 100,
    cpu_s: 4.9,
    sampler_cpu_s: 0.05,
    threads: [
      { name: "train", cpu_s: 4.5 },
      { name: "loader", cpu_s: null },
    ],
  },
  memory: null,
  speedscope: {
    $schema: "https://www.speedscope.app/file-format-schema.json",
    name: "trial 4, rank 1",
    exporter: "tuner",
    activeProfileIndex: 0,
    shared: {
      frames: [
        { name: "train", file: "/code/train.py", line: 41 },
        { name: "step", file: "/code/train.py", line: 12 },
        { name: "read", file: "/code/data.py", line: 3 },
      ],
    },
    profiles: [
      {
        type: "sampled",
        name: "train",
        unit: "seconds",
        startValue: 0,
        endValue: 5,
        samples: [[0, 1], [0]],
        weights: [4, 1],
      },
      { type: "sampled", name: "loader", unit: "seconds", startValue: 0, endValue: 5, samples: [[2]], weights: [5] },
    ],
  },
};

function shown(trial: TrialWithSegments = TRIAL) {
  render(
    <QueryClientProvider client={new QueryClient()}>
      <MantineProvider env="test">
        <Profile trial={trial} />
      </MantineProvider>
    </QueryClientProvider>,
  );
}

const ask = () => fireEvent.click(screen.getByRole("button", { name: "Profile" }));
const boxes = () => screen.getAllByRole("treeitem").map((box) => box.textContent);

describe("the profile of a rank", () => {
  it("is requested, and drawn as a flame graph", async () => {
    const asked = vi.spyOn(api, "profile").mockResolvedValue(CPU);
    shown();
    ask();
    await screen.findByRole("tree", { name: "Flame graph of train" });
    expect(asked).toHaveBeenCalledWith("trl_1", { rank: 0, kind: "cpu", duration_s: 5 });
    expect(boxes()).toEqual(["train", "train", "step"]);
    expect(screen.getByRole("treeitem", { name: "step · train.py:12: 4.00 s, 80.0 %" }).style.width).toBe("80%");
    expect(screen.getByText(/until the segment ended.*the 498 samples cost 50 ms/)).toBeTruthy();
    expect(screen.getByText("Child processes are not sampled.")).toBeTruthy();
    const lines = screen.getByRole("region", { name: "Lines with the most time of their own" });
    expect(within(lines).getAllByRole("row")[0]!.textContent).toBe("4.00 strain.py:12step");
  });

  it("widens a box when it is opened, and can be used with the keyboard", async () => {
    vi.spyOn(api, "profile").mockResolvedValue(CPU);
    shown();
    ask();
    const tree = await screen.findByRole("tree");
    fireEvent.click(screen.getByRole("treeitem", { name: /^step/ }));
    expect(screen.getByRole("treeitem", { name: /^step/ }).style.width).toBe("100%");
    fireEvent.click(screen.getByRole("button", { name: "Show everything" }));
    expect(screen.getByRole("treeitem", { name: /^step/ }).style.width).toBe("80%");
    expect(screen.queryByRole("button", { name: "Show everything" })).toBeNull();
    fireEvent.keyDown(tree, { key: "ArrowDown" });
    fireEvent.keyDown(tree, { key: "ArrowDown" });
    expect(document.activeElement!.textContent).toBe("step");
    fireEvent.keyDown(tree, { key: "ArrowDown" });
    expect(document.activeElement!.textContent, "there is nothing below").toBe("step");
    fireEvent.keyDown(tree, { key: "Enter" });
    expect(screen.getByRole("treeitem", { name: /^step/ }).style.width).toBe("100%");
    fireEvent.keyDown(tree, { key: "Home" });
    expect(screen.getByRole("treeitem", { name: /^step/ }).style.width).toBe("80%");
  });

  it("can be saved in two forms", async () => {
    vi.spyOn(api, "profile").mockResolvedValue(CPU);
    const made: Blob[] = [];
    vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => {
      made.push(blob as Blob);
      return "blob:";
    });
    shown();
    ask();
    fireEvent.click(await screen.findByRole("button", { name: "Save for speedscope" }));
    fireEvent.click(screen.getByRole("button", { name: "Save collapsed stacks" }));
    expect(JSON.parse(await made[0]!.text())).toEqual(CPU.speedscope);
    expect(await made[1]!.text()).toMatch(/^train;train \(train\.py:41\);step \(train\.py:12\) 4000000\n/);
  });

  it("says why it could not be made", async () => {
    vi.spyOn(api, "profile").mockRejectedValue(new ApiError(409, "rank 0 is being profiled already, for 3 s more"));
    shown();
    ask();
    await waitFor(() => expect(screen.getByRole("alert").textContent).toContain("is being profiled already"));
  });

  it("is not offered for a trial that has ended", () => {
    shown({ ...TRIAL, state: "stopped" });
    expect(screen.getByRole("button", { name: "Profile" }).hasAttribute("disabled")).toBe(true);
    expect(screen.getByText(/The trial has ended: only running ranks can be profiled/)).toBeTruthy();
  });

  it("shows memory by lines of code", async () => {
    const line = { file: "/code/train.py", line: 12, code: "cache.append(batch)", bytes: 2_000_000, blocks: 1 };
    const memory = {
      tracer: "tracemalloc" as const,
      lines: [line],
      traced_bytes: 2_000_000,
      traced_peak_bytes: null,
      tracer_bytes: 10,
      rss_start_bytes: 1_000_000_000,
      rss_end_bytes: 1_002_000_000,
      rss_peak_bytes: 1_003_000_000,
      gpu_start_bytes: 0,
      gpu_end_bytes: 5_000_000,
      gpu_summary: "|  PyTorch CUDA memory summary  |",
    };
    const [part] = CPU.speedscope.profiles;
    const speedscope = { ...CPU.speedscope, profiles: [{ ...part!, unit: "bytes" as const }] };
    vi.spyOn(api, "profile").mockResolvedValue({ ...CPU, kind: "memory", cpu: null, memory, speedscope });
    shown();
    ask();
    const lines = await screen.findByRole("region", { name: "Lines that allocated most of the remaining memory" });
    expect(within(lines).getByRole("row").textContent).toMatch(/in 1 blocktrain\.py:12cache\.append\(batch\)$/);
    expect(screen.getByText(/GPU memory of torch/)).toBeTruthy();
    expect(screen.getByText("| PyTorch CUDA memory summary |")).toBeTruthy();
  });
});

it("a trial has as many ranks as its newest segment", () => {
  expect(ranks(TRIAL)).toBe(2);
  expect(ranks({ segments: [] })).toBe(1);
});

it("seconds of a profile are short", () => {
  expect([0, 0.0123, 0.9996, 12.345].map(shortly)).toEqual(["0 ms", "12 ms", "1.00 s", "12.35 s"]);
});
