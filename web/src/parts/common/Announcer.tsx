import { VisuallyHidden } from "@mantine/core";
import { useEffect, useRef, useState } from "react";
import type { Experiment, ExperimentState } from "../../api/types";

/** Changes within this time make one sentence. */
const TOGETHER_MS = 1000;
/** The time that a screen reader has for a sentence before the next one comes. */
const APART_MS = 10_000;

const WORDS: Partial<Record<ExperimentState, string>> = {
  running: "The experiment is running",
  paused: "The experiment is paused",
  completed: "The experiment has completed",
  cancelled: "The experiment was cancelled",
  failed: "The experiment has failed",
};

/** Tell screen readers what happens to an experiment while its page is open: its new state, and how many trials have failed. */
export function Announcer({ experiment: { state, counts } }: { experiment: Pick<Experiment, "state" | "counts"> }) {
  const { failed } = counts;
  const [said, say] = useState({ state, failed, words: "" });
  const times = useRef({ said: 0, changed: 0 });
  useEffect(() => {
    if (state === said.state && failed === said.failed) return;
    const now = Date.now();
    times.current.changed ||= now;
    const at = Math.max(times.current.changed + TOGETHER_MS, times.current.said + APART_MS);
    const timer = setTimeout(
      () => {
        const next = words(state === said.state ? undefined : WORDS[state], failed, said.failed);
        times.current = { said: next ? Date.now() : times.current.said, changed: 0 };
        say({ state, failed, words: next });
      },
      Math.max(at - now, 0),
    );
    return () => clearTimeout(timer);
  }, [state, failed, said]);
  return (
    <VisuallyHidden aria-live="polite" aria-atomic>
      {said.words}
    </VisuallyHidden>
  );
}

/** "The experiment has completed; 2 more trials have failed, 5 in all." */
function words(state: string | undefined, failed: number, before: number): string {
  const more = failed - before;
  const failures =
    more > 0 &&
    `${more}${before > 0 ? " more" : ""} ${more === 1 ? "trial has" : "trials have"} failed${before > 0 ? `, ${failed} in all` : ""}`;
  const found = [state, failures].filter(Boolean).join("; ");
  return found && `${found}.`;
}
