import { Group, Select, Skeleton, TextInput } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useLayoutEffect, useRef } from "react";
import { api } from "../api/client";
import type { TrialWithSegments } from "../api/types";
import { hasEnded } from "../live/states";
import type { Address } from "../pages/useAddress";
import { ProblemBox } from "./Problem";
import classes from "./TrialDetails.module.css";

const TAIL = 500;
const POLL_MS = 2000;
const LATE_MS = 60_000; // after the end of a trial, how long the rest of its logs may take to come

/** The last lines that the ranks wrote; follows the end while it is in view. */
export function Logs({ trial, address }: { trial: TrialWithSegments; address: Address }) {
  const last = trial.segments[trial.segments.length - 1]?.ordinal;
  const asked = Number(address.get("segment"));
  const segment = trial.segments.some(({ ordinal }) => ordinal === asked) ? asked : last;
  const rank = /^\d{1,6}$/.test(address.get("logrank") ?? "") ? address.get("logrank")! : "";
  const search = (address.get("logq") ?? "").slice(0, 1000);
  const query = useQuery({
    queryKey: ["trial", trial.id, "logs", segment, rank, search],
    queryFn: ({ signal }) =>
      api.logs(
        trial.id,
        {
          tail: TAIL,
          ...(segment ? { segment } : {}),
          ...(rank ? { rank: Number(rank) } : {}),
          ...(search ? { search } : {}),
        },
        signal,
      ),
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => (mayGrow(trial, state.data?.items ?? []) ? POLL_MS : false),
  });
  const pre = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  const parts = query.data?.items.filter((part) => part.text) ?? [];
  useLayoutEffect(() => {
    if (pre.current && atEnd.current) pre.current.scrollTop = pre.current.scrollHeight;
  });
  return (
    <>
      <Group gap="xs" mb="xs">
        <Select
          size="xs"
          w={140}
          aria-label="Segment"
          allowDeselect={false}
          value={String(segment ?? "")}
          data={trial.segments.map(({ ordinal }) => ({ value: String(ordinal), label: `segment ${ordinal}` }))}
          onChange={(value) => address.set({ segment: value })}
        />
        <Select
          size="xs"
          w={120}
          aria-label="Rank"
          allowDeselect={false}
          value={rank}
          onChange={(value) => address.set({ logrank: value })}
          data={[
            { value: "", label: "all ranks" },
            ...ranksOf(query.data?.items ?? [], rank).map((one) => ({ value: String(one), label: `rank ${one}` })),
          ]}
        />
        <TextInput
          size="xs"
          w={220}
          aria-label="Search the log"
          placeholder="lines that contain…"
          value={search}
          onChange={(event) => address.set({ logq: event.currentTarget.value || null })}
        />
      </Group>
      {query.isError && <ProblemBox error={query.error} what="logs" retry={() => void query.refetch()} />}
      {query.isLoading && <Skeleton height={120} />}
      {query.isSuccess && parts.length === 0 && (
        <p className={classes.none}>
          {search ? "No line contains this" : "Nothing has been written"}
          {rank && ` by rank ${rank}`}.
        </p>
      )}
      {parts.length > 0 && (
        <pre
          ref={pre}
          className={classes.pre}
          tabIndex={0}
          aria-label="Log lines"
          style={{ maxHeight: 520 }}
          onScroll={({ currentTarget: box }) =>
            (atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 30)
          }
        >
          {parts.map((part) => `── rank ${part.rank} · ${part.stream}\n${part.text.replace(/\n?$/, "\n")}`).join("")}
        </pre>
      )}
    </>
  );
}

/** Return whether more of these logs may come. The last lines often come after the trial has ended. */
function mayGrow(trial: TrialWithSegments, logs: readonly { complete: boolean }[]): boolean {
  if (!hasEnded(trial.state)) return true;
  if (logs.length > 0 && logs.every((log) => log.complete)) return false;
  // The ranks of a trial may be gone only a while after the trial was ended.
  const endings = [trial, ...trial.segments].map((one) => Date.parse(one.ended_at ?? "")).filter(Number.isFinite);
  return Date.now() - Math.max(...endings) < LATE_MS;
}

function ranksOf(parts: readonly { rank: number }[], chosen: string): number[] {
  const all = new Set(parts.map((part) => part.rank));
  if (chosen) all.add(Number(chosen));
  return [...all].sort((a, b) => a - b);
}
