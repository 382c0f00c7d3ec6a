import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { TrialWithSegments } from "../../api/types";
import { SEARCH_FIELD } from "../common/useKeys";
import { Logs } from "./Logs";

const ENDED_AT = "2026-01-02T03:04:05Z";
const ADDRESS = { get: () => null, set: () => {} } as unknown as Parameters<typeof Logs>[0]["address"];

const TRIAL = {
  id: "trl_1",
  state: "stopped",
  ended_at: ENDED_AT,
  segments: [{ ordinal: 1, ended_at: null }],
} as unknown as TrialWithSegments;

describe("the logs of a trial that has ended", () => {
  let answer: { rank: number; stream: string; text: string; complete: boolean }[];
  const logs = vi.spyOn(api, "logs");
  const pass = (ms: number) => act(() => vi.advanceTimersByTimeAsync(ms));
  const show = (secondsAgo: number) => {
    vi.setSystemTime(Date.parse(ENDED_AT) + secondsAgo * 1000);
    render(
      <MantineProvider>
        <QueryClientProvider client={new QueryClient()}>
          <Logs trial={TRIAL} address={ADDRESS} />
        </QueryClientProvider>
      </MantineProvider>,
    );
    return pass(1);
  };

  beforeEach(() => {
    vi.useFakeTimers();
    logs.mockReset();
    logs.mockImplementation(() => Promise.resolve({ items: answer }) as ReturnType<typeof api.logs>);
  });

  afterEach(() => vi.useRealTimers());

  it("are read until the last lines have come", async () => {
    answer = [{ rank: 0, stream: "out", text: "epoch 9\n", complete: false }];
    await show(1);
    await pass(2000);
    expect(logs).toHaveBeenCalledTimes(2);
    answer = [{ rank: 0, stream: "out", text: "epoch 9\nTraceback\n", complete: true }];
    await pass(2000);
    expect(screen.getByLabelText("Log lines").textContent).toContain("Traceback");
    await pass(20_000);
    expect(logs).toHaveBeenCalledTimes(3);
  });

  it("are not called silent if they were deleted", async () => {
    const { segments } = TRIAL;
    TRIAL.segments = [{ ordinal: 1, started_at: ENDED_AT, ended_at: ENDED_AT }] as typeof segments;
    answer = [];
    await show(3600);
    expect(screen.getByText(/^No output is stored: it was deleted after TUNER_LOG_DAYS/)).toBeTruthy();
    cleanup();
    answer = [{ rank: 0, stream: "out", text: "", complete: true }];
    await show(3600);
    expect(screen.getByText(/^The ranks have printed nothing here/)).toBeTruthy();
    TRIAL.segments = segments;
  });

  it("keep the text that is typed into the search until the new address is drawn", async () => {
    answer = [];
    await show(1);
    const field = screen.getByLabelText<HTMLInputElement>("Search the log");
    fireEvent.change(field, { target: { value: "e" } });
    expect(field.value).toBe("e");
    fireEvent.change(field, { target: { value: "ep" } });
    expect(field.value).toBe("ep");
    fireEvent.blur(field);
    expect(field.value).toBe("");
  });

  it("stay as they are while somebody reads above their end", async () => {
    const lines = (last: number) => `${Array.from({ length: 500 }, (_, i) => `step ${last - 499 + i}`).join("\n")}\n`;
    answer = [{ rank: 0, stream: "out", text: lines(1000), complete: false }];
    await show(1);
    const follow = () => fireEvent.click(screen.getByLabelText("Follow new lines"));
    follow();
    answer = [{ rank: 0, stream: "out", text: lines(1020), complete: false }];
    await pass(6000);
    expect(logs).toHaveBeenCalledTimes(1);
    follow();
    await pass(2000);
    expect(logs).toHaveBeenCalledTimes(2);
  });

  it("are shown from the beginning however many lines they have", async () => {
    answer = [{ rank: 0, stream: "out", text: "epoch 9\n", complete: true }];
    await show(3600);
    expect(logs).toHaveBeenLastCalledWith("trl_1", expect.objectContaining({ tail: 500 }), expect.anything());
    fireEvent.click(screen.getByRole("button", { name: "Show it from the beginning" }));
    await pass(1);
    expect(logs.mock.lastCall![1]).toEqual({ limit: 10_000_000, segment: 1 });
  });

  it("are searched with the key /", async () => {
    answer = [];
    await show(3600);
    expect(screen.getByLabelText("Search the log").matches(SEARCH_FIELD)).toBe(true);
  });

  it("are read again for up to a minute if no line has come yet", async () => {
    answer = [];
    await show(51);
    await pass(8000);
    expect(logs).toHaveBeenCalledTimes(5);
    await pass(2000);
    const reads = logs.mock.calls.length;
    await pass(60_000);
    expect(logs).toHaveBeenCalledTimes(reads);
  });

  it("are read once if it ended long ago", async () => {
    answer = [{ rank: 0, stream: "out", text: "its node was lost\n", complete: false }];
    await show(3600);
    await pass(20_000);
    expect(logs).toHaveBeenCalledTimes(1);
  });

  it("wrap long lines on phones, and elsewhere if somebody asks for it", async () => {
    answer = [{ rank: 0, stream: "out", text: "epoch 9\n", complete: true }];
    const wraps = () => screen.getByRole<HTMLInputElement>("switch", { name: "Wrap lines" });
    await show(3600);
    expect(wraps().checked).toBe(false);
    cleanup();
    vi.stubGlobal("matchMedia", () => ({ matches: true, addEventListener: () => {}, removeEventListener: () => {} }));
    await show(3600);
    vi.unstubAllGlobals();
    expect(wraps().checked).toBe(true);
    expect(screen.getByLabelText("Log lines").dataset["wrap"]).toBe("true");
  });
});
