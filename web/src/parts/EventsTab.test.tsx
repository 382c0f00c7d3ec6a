import { describe, expect, it } from "vitest";
import type { LogEntry } from "../api/types";
import { eventWords, GROUPS, kindsOf } from "./eventWords";

describe("an event in words", () => {
  it.each<[LogEntry["kind"], Record<string, unknown>, string]>([
    [
      "driver_started",
      { epoch: 2, slots: 4, executor: "on Ray" },
      "A driver took over (epoch 2); there is room for 4 trials at once; on Ray",
    ],
    [
      "segment_started",
      { segment: 1, startup_s: 1.3, warm: true, placement: { ranks: [{ host: "a" }, { host: "b" }, { host: "a" }] } },
      "Segment 1 started in 1.3 s in a warm group on a, b",
    ],
    [
      "segment_ended",
      { segment: 2, outcome: "failed", failure: { message: "boom\nmore", rank: 1, traceback: "" } },
      "Segment 2 ended: it failed on rank 1: boom",
    ],
    ["segment_ended", { segment: 2, outcome: "left", failure: null }, "Segment 2 ended, as was decided"],
    ["reported", { iteration: 9, metrics: { loss: null, acc: 0.123456789 } }, "Iteration 9: loss –, acc 0.123457"],
    ["commanded", { command: "stop", reason: "" }, "A user asked to stop it"],
    ["amended", { changes: { num_samples: 40 }, reason: "more" }, "A user changed num_samples: more"],
    ["enqueued", { points: [{ params: { lr: 1 } }], reason: "" }, "A user enqueued a trial"],
    ["suggested", { number: 3, params: { lr: 0.5 } }, "The searcher proposed trial 3: lr=0.5"],
    ["gpu_hours_spent", { gpu_hours: 8 }, "The budget of 8 GPU hours is used up"],
  ])("%s", (kind, data, words) => expect(eventWords({ kind, data }).text).toBe(words));

  it("has something to say about every kind, and what is long behind it", () => {
    const kinds = GROUPS.flatMap((one) => one.kinds);
    expect(new Set(kinds).size).toBe(21);
    for (const kind of kinds) expect(eventWords({ kind, data: {} }).text, kind).not.toMatch(/undefined|null|NaN/);
    const failed = eventWords({ kind: "segment_ended", data: { failure: { message: "boom", traceback: "line 1" } } });
    expect(failed.more).toBe("line 1");
  });

  it("leaves out what would hide the rest, unless it is asked for", () => {
    expect(kindsOf([])).not.toContain("reported");
    expect(kindsOf([])).toContain("segment_ended");
    expect(kindsOf(["reports"])).toEqual(["reported"]);
  });
});
