import { MantineProvider } from "@mantine/core";
import { act, render } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { ExperimentState } from "../../api/types";
import { Announcer } from "./Announcer";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function open() {
  const node = (state: ExperimentState, failed: number) => (
    <MantineProvider env="test">
      <Announcer experiment={{ state, counts: { failed } as never }} />
    </MantineProvider>
  );
  const { rerender } = render(node("running", 1));
  return (state: ExperimentState, failed: number) => rerender(node(state, failed));
}
const pass = (ms: number) => act(() => void vi.advanceTimersByTime(ms));
const said = () => document.querySelector("[aria-live=polite]")!.textContent;

it("says nothing when the page is opened, and then each new state and the failures of trials", () => {
  const become = open();
  pass(60_000);
  expect(said()).toBe("");
  become("running", 2);
  pass(1000);
  expect(said()).toBe("1 more trial has failed, 2 in all.");
  become("completed", 4);
  pass(10_000);
  expect(said()).toBe("The experiment has completed; 2 more trials have failed, 4 in all.");
});

it("says what happens fast in one sentence every ten seconds, however often a trial fails", () => {
  const become = open();
  const heard: (string | null)[] = [];
  for (let failed = 2; failed <= 101; failed++) {
    become("running", failed);
    pass(250);
    if (heard.at(-1) !== said()) heard.push(said());
  }
  expect(heard).toEqual([
    "",
    "4 more trials have failed, 5 in all.",
    "40 more trials have failed, 45 in all.",
    "40 more trials have failed, 85 in all.",
  ]);
});

it("says at once that an experiment is paused, though it needs some seconds for it", () => {
  const become = open();
  become("pausing", 1);
  pass(4000);
  expect(said()).toBe("");
  become("paused", 1);
  pass(1000);
  expect(said()).toBe("The experiment is paused.");
});

it("says no failures of trials that run again", () => {
  const become = open();
  become("running", 0);
  pass(60_000);
  expect(said()).toBe("");
  become("running", 1);
  pass(60_000);
  expect(said()).toBe("1 trial has failed.");
});
