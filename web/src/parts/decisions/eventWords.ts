/** Each entry of an experiment's log as one sentence. */

import type { LogEntry } from "../../api/types";
import { bytes, config, duration, metric, number, param, plural } from "../../format";

type Data = Readonly<Record<string, unknown>>;

/** The groups into which the kinds of entries are divided, so that users need not read a long list of kinds. */
export const GROUPS: readonly { label: string; kinds: readonly LogEntry["kind"][] }[] = [
  { label: "starts", kinds: ["waiting", "segment_started"] },
  { label: "ends", kinds: ["segment_ended", "stop_judged"] },
  { label: "reports", kinds: ["reported"] },
  { label: "checkpoints", kinds: ["checkpoint_saved", "checkpoint_deleted", "upload_failed", "pinned"] },
  { label: "users", kinds: ["commanded", "amended", "enqueued"] },
  { label: "search", kinds: ["suggested", "drawn", "noted", "model_fitted"] },
  {
    label: "driver and limits",
    kinds: [
      "driver_started",
      "slots_changed",
      "workers_changed",
      "room_wanted",
      "budget_spent",
      "gpu_hours_spent",
      "clock_jumped",
    ],
  },
  { label: "decisions", kinds: ["decision"] },
];

/**
 * Return the kinds of the chosen groups. If none is chosen: all but reports and decisions, which other tabs show and which would hide
 * the rest.
 */
export function kindsOf(chosen: readonly string[]): LogEntry["kind"][] {
  const groups = GROUPS.filter(({ label }) =>
    chosen.length > 0 ? chosen.includes(label) : label !== "reports" && label !== "decisions",
  );
  return groups.flatMap(({ kinds }) => kinds);
}

interface Failed {
  message?: string;
  rank?: number | null;
  traceback?: string;
}

/** Return the iterations of the checkpoints that entries name, by their ids: the event of a deletion has only the id. */
export function iterationsOf(entries: readonly Pick<LogEntry, "data">[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const { data } of entries) {
    const named = [data["checkpoint"], ...(Array.isArray(data["uploading"]) ? (data["uploading"] as unknown[]) : [])];
    for (const one of named as ({ id?: unknown; step?: unknown } | null | undefined)[])
      if (typeof one?.id === "string" && typeof one.step === "number") found.set(one.id, one.step);
  }
  return found;
}

/**
 * Return the sentence and, if there is one, the long text behind it. `iterations`: the iterations of checkpoints that are known, by
 * their ids.
 */
export function eventWords(
  entry: Pick<LogEntry, "kind" | "data"> & Partial<Pick<LogEntry, "trial_number">>,
  iterations: ReadonlyMap<string, number> = new Map(),
): { text: string; more?: string } {
  const data = entry.data as Data;
  const again = typeof data["segment"] === "number" && data["segment"] > 1;
  const segment = again ? ` (segment ${param(data["segment"])})` : "";
  switch (entry.kind) {
    case "driver_started":
      return {
        text: [
          Number(data["epoch"]) > 1
            ? `A new driver took over the experiment (driver ${param(data["epoch"])})`
            : "A driver began to run the experiment",
          data["slots"] ? `there is room for ${plural(param(data["slots"]), "trial")} at once` : "",
          param(data["executor"]),
        ]
          .filter(Boolean)
          .join("; "),
      };
    case "waiting":
      return { text: `The trial waits to start${again ? " again" : ""}: ${param(data["reason"])}` };
    case "segment_started": {
      const places = hosts(data["placement"]);
      const took = typeof data["startup_s"] === "number" ? ` within ${duration(data["startup_s"])}` : "";
      const reused = data["warm"] ? ", in processes that were already running" : "";
      return { text: `The trial started${again ? " again" : ""}${segment}${took}${places}${reused}` };
    }
    case "segment_ended": {
      const failure: Failed | null = data["failure"] ?? null;
      const outcome =
        { returned: "The training function returned", left: "The trial stopped running because of a decision" }[
          param(data["outcome"])
        ] ?? (data["outcome"] === "failed" || failure ? "The trial failed" : "The trial stopped running");
      const why = failure?.message ? `: ${failure.message.split("\n")[0]}` : "";
      const rank = failure?.rank === null || failure?.rank === undefined ? "" : ` on rank ${failure.rank}`;
      const text = `${outcome}${segment}${rank}${why}`;
      return failure?.traceback ? { text, more: failure.traceback } : { text };
    }
    case "reported": {
      const metrics = Object.entries((data["metrics"] ?? {}) as Record<string, number | null>);
      const said = metrics.map(([name, value]) => `${name} ${metric(value)}`).join(", ");
      return { text: `Iteration ${param(data["iteration"])}: ${said || "no metrics"}` };
    }
    case "decision":
      return { text: `${param(data["kind"])}: ${param(data["reason"])}` };
    case "stop_judged":
      return {
        text: `The stop functions judged the trial at iteration ${param(data["iteration"])}`,
        more: pretty(data["answers"]),
      };
    case "checkpoint_saved": {
      const found = data["checkpoint"] as { step?: number; bytes?: number } | null;
      return {
        text: `The checkpoint of iteration ${param(found?.step)} was saved${found?.bytes ? ` (${bytes(found.bytes)})` : ""}: the trial can continue from it`,
      };
    }
    case "checkpoint_deleted":
      return { text: `${checkpointWords(data, iterations)} was deleted: it is not kept any longer` };
    case "upload_failed": {
      const lost = data["checkpoint"] as { step?: number } | null | undefined;
      return {
        text: `The checkpoint of iteration ${param(lost?.step)} was not saved, since its upload failed${because(data)}`,
      };
    }
    case "pinned":
      return {
        text: `A user ${data["pinned"] ? "pinned" : "unpinned"} ${lower(checkpointWords(data, iterations))}: ${data["pinned"] ? "it is kept until it is unpinned" : "it may be deleted again"}`,
      };
    case "suggested":
      return {
        text:
          data["params"] === null
            ? "The searcher has no more configurations"
            : `The searcher proposed trial ${param(data["number"])}: ${config((data["params"] ?? {}) as Data)}`,
      };
    case "drawn":
      return { text: `The trial asked for ${param(data["name"])} and got ${param(data["value"])}` };
    case "noted":
      return { text: `The trial noted ${config((data["notes"] ?? {}) as Data)}` };
    case "model_fitted":
      return { text: "The scheduler fitted its model to the reports" };
    case "commanded":
      return {
        text: `A user asked to ${param(data["command"])} ${typeof entry.trial_number === "number" ? "the trial" : "the experiment"}${because(data)}`,
      };
    case "amended":
      return {
        text: `A user changed ${Object.keys(data["changes"] ?? {}).join(", ")}${because(data)}`,
        more: pretty(data["changes"]),
      };
    case "enqueued": {
      const points = Array.isArray(data["points"]) ? data["points"] : [];
      return {
        text: `A user enqueued ${points.length === 1 ? "a trial" : `${points.length} trials`}${because(data)}`,
        more: pretty(points),
      };
    }
    case "room_wanted":
      return { text: `The trial has to release its resources ${param(data["reason"])}` };
    case "budget_spent":
      return { text: `The time budget of ${duration(data["seconds"] as number)} is used up` };
    case "gpu_hours_spent":
      return { text: `The budget of ${plural(number(data["gpu_hours"] as number), "GPU hour")} is used up` };
    case "slots_changed":
      return { text: `The cluster now has room for ${plural(param(data["slots"]), "trial")} at once` };
    case "workers_changed": {
      return { text: `Elastic trials may now have ${plural(param(data["workers"]), "worker")} together` };
    }
    case "clock_jumped": {
      const seconds = data["seconds"] as number;
      return {
        text:
          seconds < 0
            ? `The clock of the driver was put back by ${duration(-seconds)}`
            : `The driver or its machine was suspended for ${duration(seconds)}, or its clock was put forward: this time does not count as training`,
      };
    }
  }
}

/** Kinds whose single events tell little: three or more of them in a row are one line. */
const FREQUENT: Partial<Record<LogEntry["kind"], readonly [string, string]>> = {
  checkpoint_saved: ["checkpoint was saved", "checkpoints were saved"],
  checkpoint_deleted: ["checkpoint was deleted", "checkpoints were deleted"],
  suggested: ["configuration was proposed", "configurations were proposed"],
  model_fitted: ["model was fitted", "models were fitted"],
  stop_judged: ["trial was judged by stop functions", "judgments of stop functions were made"],
  drawn: ["value was asked for by a trial", "values were asked for by trials"],
  noted: ["note was made by a trial", "notes were made by trials"],
  slots_changed: ["change of the room for trials", "changes of the room for trials"],
  workers_changed: ["change of the room for elastic trials", "changes of the room for elastic trials"],
};
const FEWEST_GROUPED = 3;

/** Return the entries in their order, with each row of three or more frequent ones as a list. */
export function grouped<T extends Pick<LogEntry, "kind">>(entries: readonly T[]): (T | readonly T[])[] {
  const found: (T | readonly T[])[] = [];
  let row: T[] = [];
  const close = () => {
    if (row.length >= FEWEST_GROUPED) found.push(row);
    else found.push(...row);
    row = [];
  };
  for (const entry of entries) {
    if (FREQUENT[entry.kind]) row.push(entry);
    else {
      close();
      found.push(entry);
    }
  }
  close();
  return found;
}

/** "7 checkpoints were saved, 2 checkpoints were deleted" */
export function groupWords(entries: readonly Pick<LogEntry, "kind">[]): string {
  const counts = new Map<LogEntry["kind"], number>();
  for (const { kind } of entries) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts].map(([kind, count]) => `${count} ${FREQUENT[kind]![count === 1 ? 0 : 1]}`).join(", ");
}

function checkpointWords(data: Data, iterations: ReadonlyMap<string, number>): string {
  const id = param(data["checkpoint"]);
  const iteration = iterations.get(id);
  return iteration === undefined ? `The checkpoint ${id}` : `The checkpoint of iteration ${iteration}`;
}

function lower(text: string): string {
  return text.charAt(0).toLowerCase() + text.slice(1);
}

function because(data: Data): string {
  return data["reason"] ? `: ${param(data["reason"])}` : "";
}

function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2);
}

/** " on node-a, node-b" */
function hosts(placement: unknown): string {
  const ranks = (placement as { ranks?: { host?: string; node?: string }[] } | null)?.ranks;
  if (!Array.isArray(ranks) || ranks.length === 0) return "";
  return ` on ${[...new Set(ranks.map((rank) => rank.host || rank.node || "?"))].join(", ")}`;
}
