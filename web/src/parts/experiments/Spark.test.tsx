import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { FrontCount, FrontSpark, Spark, SPARK_AXES } from "./Spark";

describe("the line of the best value in the list", () => {
  afterEach(() => vi.restoreAllMocks());

  it("says that it is without the repeats, whose mean may be better", async () => {
    const read = { x: [1, 4], y: [100, 204.975] } as Awaited<ReturnType<typeof api.bestSoFar>>;
    vi.spyOn(api, "bestSoFar").mockResolvedValue(read);
    render(
      <QueryClientProvider client={new QueryClient()}>
        <Spark id="exp_1" label="Best reward" value={210.315} repeated ran={5} />
      </QueryClientProvider>,
    );
    await screen.findByRole("img", {
      name: /from 100 to 204\.975\. The line shows the best value of a single run, without the repeats\. The horizontal axis/,
    });
  });

  it("says what it shows, and in which directions", async () => {
    vi.spyOn(api, "bestSoFar").mockResolvedValue({ x: [1, 4], y: [0.9, 0.25] } as Awaited<
      ReturnType<typeof api.bestSoFar>
    >);
    render(
      <QueryClientProvider client={new QueryClient()}>
        <Spark id="exp_1" label="Best loss" value={0.25} repeated={false} ran={40} />
      </QueryClientProvider>,
    );
    const words = `Best loss over time, from 0.9 to 0.25. ${SPARK_AXES}`;
    const line = await screen.findByRole("img", { name: words });
    expect(line.querySelector("title")!.textContent).toBe(words);
    // A loss falls: SVG counts from the top, so the line goes down to a larger number.
    const [, first, at, second] = /^M[\d.]+ ([\d.]+)H([\d.]+)V([\d.]+)H90$/.exec(
      line.querySelector("path")!.getAttribute("d")!,
    )!;
    expect(Number(second)).toBeGreaterThan(Number(first));
    expect(at).toBe("9.0"); // a tenth of the width: the search went on for ten times as long without a better value
  });
});

it("is the hypervolume if there are several objectives, and the front is counted", async () => {
  const read = { metrics: ["a", "b"], x: [1, 4], y: [0.2, 0.75], front: 3, of: 9 };
  const asked = vi.spyOn(api, "hypervolume").mockResolvedValue(read);
  const experiment = {
    id: "exp_1",
    state: "running",
    objectives: [
      { metric: "a", mode: "max" },
      { metric: "b", mode: "min" },
    ],
    counts: { pending: 0, running: 1, paused: 0, completed: 8, stopped: 0, failed: 0, cancelled: 0 },
  } as unknown as Experiment;
  render(
    <QueryClientProvider client={new QueryClient()}>
      <FrontSpark experiment={experiment} ran={5} />
      <FrontCount experiment={experiment} />
    </QueryClientProvider>,
  );
  await screen.findByRole("img", { name: /^Hypervolume over time, from 0\.2 to 0\.75\./ });
  await screen.findByText("front of 3 trials");
  expect(asked).toHaveBeenCalledTimes(1);
});
