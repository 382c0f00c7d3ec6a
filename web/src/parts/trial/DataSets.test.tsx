import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, render, screen, waitFor } from "@testing-library/react";
import { MemoryRouter, Route, Routes } from "react-router";
import { afterEach, describe, expect, it, vi } from "vitest";
import { App } from "../../App";
import { api, ApiError } from "../../api/client";
import type { DataSet, TrialWithSegments } from "../../api/types";
import { DataSets, throughput } from "./DataSets";

const SET: DataSet = {
  name: "train",
  state: "running",
  executions: 1,
  seconds: 12,
  rows_per_s: 1234.6,
  blocks_per_s: 0.5,
  operators: [],
  stats: null,
};
const live = (...data_sets: DataSet[]) => ({ segment: 1, ranks: [], data_sets });

describe("the panel of data sets", () => {
  afterEach(() => {
    vi.restoreAllMocks();
    vi.useRealTimers();
  });

  it("appears when a trial reads its first data set, even if the service had no answer at first", async () => {
    vi.useFakeTimers();
    const asked = vi
      .spyOn(api, "live")
      .mockRejectedValueOnce(new ApiError(409, "no running ranks"))
      .mockResolvedValueOnce(live())
      .mockResolvedValue(live(SET));
    const client = new QueryClient();
    const panel = (state: TrialWithSegments["state"], source = "api") => (
      <MantineProvider env="test">
        <QueryClientProvider client={client}>
          <DataSets trial={{ id: "trl_1", state } as TrialWithSegments} source={source} />
        </QueryClientProvider>
      </MantineProvider>
    );
    const pass = (ms: number) => act(() => vi.advanceTimersByTimeAsync(ms));
    const { rerender } = render(panel("running"));
    await pass(9_000);
    expect(asked).toHaveBeenCalledTimes(1);
    await pass(2_000);
    expect(asked).toHaveBeenCalledTimes(2);
    expect(screen.queryByRole("region")).toBeNull();
    await pass(10_000);
    expect(asked).toHaveBeenCalledTimes(3);
    expect(screen.getByRole("region", { name: "Data set train" })).toBeTruthy();
    await pass(5_000);
    expect(asked, "states that change are read more often").toHaveBeenCalledTimes(4);
    rerender(panel("completed"));
    await pass(60_000);
    expect(asked).toHaveBeenCalledTimes(4);
    expect(screen.queryByRole("region")).toBeNull();
    rerender(panel("running", "python"));
    await pass(60_000);
    expect(asked, "the service has no ranks of a script's own run").toHaveBeenCalledTimes(4);
    expect(screen.getByText(/This one was started by a script/)).toBeTruthy();
  });

  it("takes a service without a driver for no service that is down", async () => {
    vi.spyOn(api, "session").mockResolvedValue({ required: false, name: null } as never);
    vi.spyOn(api, "live").mockRejectedValue(new ApiError(503, "no driver host answers at the moment"));
    const client = new QueryClient();
    const trial = { id: "trl_1", state: "running" } as TrialWithSegments;
    render(
      <MantineProvider env="test">
        <QueryClientProvider client={client}>
          <MemoryRouter>
            <Routes>
              <Route element={<App />}>
                <Route path="*" element={<DataSets trial={trial} source="api" />} />
              </Route>
            </Routes>
          </MemoryRouter>
        </QueryClientProvider>
      </MantineProvider>,
    );
    await waitFor(() => expect(client.getQueryState(["trial", "trl_1", "live"])!.status).toBe("error"));
    expect(screen.queryByRole("alert")).toBeNull();
  });
});

describe("the throughput of a data set", () => {
  const set = { state: "running", executions: 3, seconds: 12, rows_per_s: 1234.6, blocks_per_s: 0.5 };

  it("is in rows if Ray Data estimates them", () => {
    expect(throughput(set)).toBe("execution 3, running for 12 s: 1235 rows/s");
    expect(throughput({ ...set, state: "finished" })).toBe("execution 3, finished after 12 s: 1235 rows/s");
  });

  it("is in blocks otherwise", () => {
    expect(throughput({ ...set, executions: 1, rows_per_s: null })).toBe("running for 12 s: 0.50 blocks/s");
  });

  it("says that a data set has not been executed yet", () => {
    expect(throughput({ ...set, state: null, seconds: null })).toBe("Not executed yet.");
  });
});
