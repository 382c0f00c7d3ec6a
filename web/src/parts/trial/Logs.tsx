import { Anchor, Button, Group, Switch, TextInput } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMediaQuery } from "@mantine/hooks";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { api } from "../../api/client";
import { serviceTime } from "../../api/clock";
import type { TrialWithSegments } from "../../api/types";
import { hasEnded } from "../../live/states";
import type { Address } from "../../pages/useAddress";
import { Select } from "../common/Select";
import { errorAt, linesOf } from "./logLines";
import classes from "./Logs.module.css";
import { ProblemBox } from "../common/Problem";
import { useTyped } from "../common/useTyped";
import { Loading } from "../common/Loading";

/** The number of lines of each rank that are read unless the user asks for more. */
const TAIL = 500;
const POLL_MS = 2000;
const LATE_MS = 60_000; // after the end of a trial, how long the rest of its logs may take to come
const LINE = 18;

/**
 * Show the output of the ranks. Only visible lines are drawn. While the end is visible, new lines are followed. Otherwise, the last
 * lines of a long log are not read again: they would move away from where somebody reads them.
 */
export function Logs({ trial, address }: { trial: TrialWithSegments; address: Address }) {
  const last = trial.segments[trial.segments.length - 1]?.ordinal;
  const asked = Number(address.get("segment"));
  const segment = trial.segments.some(({ ordinal }) => ordinal === asked) ? asked : last;
  const rank = /^\d{1,6}$/.test(address.get("logrank") ?? "") ? address.get("logrank")! : "";
  const search = (address.get("logq") ?? "").slice(0, 1000);
  const typed = useTyped(search, (text) => {
    address.set({ logq: text || null });
    return text;
  });
  const [whole, setWhole] = useState(false);
  const shownPart = `${segment} ${rank} ${search}`;
  const [scrolledUp, setScrolledUp] = useState<string | null>(null); // the part whose end has been left
  const follow = scrolledUp !== shownPart;
  const phone = useMediaQuery("(max-width: 640px)") ?? false;
  const asks = address.get("wrap");
  const wrap = asks === null ? phone : asks === "yes";
  const query = useQuery({
    queryKey: ["trial", trial.id, "logs", segment, rank, search, whole],
    queryFn: ({ signal }) =>
      api.logs(
        trial.id,
        {
          ...(whole ? { limit: 10_000_000 } : { tail: TAIL }),
          ...(segment ? { segment } : {}),
          ...(rank ? { rank: Number(rank) } : {}),
          ...(search ? { search } : {}),
        },
        signal,
      ),
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => ((follow || whole) && mayGrow(trial, state.data?.items ?? []) ? POLL_MS : false),
  });
  const parts = query.data?.items;
  const lines = useMemo(() => linesOf(parts ?? []), [parts]);
  const none = query.isSuccess && lines.length === 0;
  // A rank that has printed nothing has an empty output.
  const ran = trial.segments.some(({ ordinal, started_at, ended_at }) => ordinal === segment && started_at && ended_at);
  const gone = ran && !rank && parts?.length === 0 && !mayGrow(trial, parts);
  return (
    <>
      <Group gap="xs" mb="xs">
        <Select
          size="xs"
          w={130}
          aria-label="Segment"
          allowDeselect={false}
          value={String(segment ?? "")}
          data={trial.segments.map(({ ordinal }) => ({ value: String(ordinal), label: `segment ${ordinal}` }))}
          onChange={(value) => address.set({ segment: value })}
        />
        <Select
          size="xs"
          w={110}
          aria-label="Rank"
          allowDeselect={false}
          value={rank}
          onChange={(value) => address.set({ logrank: value })}
          data={[
            { value: "", label: "all ranks" },
            ...ranksOf(parts ?? [], rank).map((one) => ({ value: String(one), label: `rank ${one}` })),
          ]}
        />
        <TextInput
          size="xs"
          w={180}
          aria-label="Search the log"
          placeholder="lines that contain…"
          data-search
          {...typed}
        />
      </Group>
      {query.isError && <ProblemBox error={query.error} what="logs" retry={() => void query.refetch()} />}
      {query.isLoading && <Loading what="logs" height={120} />}
      {none && (
        <p className={classes.none}>
          {search
            ? "No line contains this text"
            : gone
              ? "No output is stored: it was deleted after TUNER_LOG_DAYS, or never stored"
              : "The ranks have printed nothing here"}
          {rank && ` by rank ${rank}`}.
        </p>
      )}
      {lines.length > 0 && (
        <Lines
          key={shownPart}
          lines={lines}
          search={search}
          follow={follow}
          onFollow={(on) => setScrolledUp(on ? null : shownPart)}
          wrap={wrap}
          onWrap={(on) => address.set({ wrap: on === phone ? null : on ? "yes" : "no" })}
          aside={
            <>
              <Button size="compact-xs" variant="default" onClick={() => setWhole(!whole)}>
                {whole ? `Only the last ${TAIL} lines` : "Show it from the beginning"}
              </Button>
              {ranksOf(parts ?? [], rank)
                .slice(0, 1)
                .map((one) => (
                  <Anchor
                    key={one}
                    size="xs"
                    href={api.logUrl(trial.id, one, segment)}
                    download={`trial_${trial.number}_segment_${segment}_rank${one}.log`}
                  >
                    Download rank {one}
                  </Anchor>
                ))}
            </>
          }
        />
      )}
    </>
  );
}

interface LinesProps {
  lines: readonly ReturnType<typeof linesOf>[number][];
  search: string;
  /** True if new lines are scrolled to. */
  follow: boolean;
  onFollow: (follow: boolean) => void;
  /** True if long lines are wrapped; otherwise the box scrolls sideways. */
  wrap: boolean;
  onWrap: (wrap: boolean) => void;
  aside: React.ReactNode;
}

function Lines({ lines, search, follow, onFollow, wrap, onWrap, aside }: LinesProps) {
  const box = useRef<HTMLDivElement>(null);
  const [marked, setMarked] = useState<number | null>(null);
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => box.current,
    estimateSize: () => LINE,
    overscan: 20,
  });
  // Heights that were measured with the other setting, or at another width, are wrong.
  useLayoutEffect(() => rows.measure(), [wrap, rows]);
  const count = lines.length;
  useEffect(() => {
    if (follow) rows.scrollToIndex(count - 1, { align: "end" });
  }, [follow, count, rows]);
  const first = useMemo(() => errorAt(lines), [lines]);
  const jump = () => {
    // Go to the next error after the marked one, and from the last error back to the first.
    const next = marked === null ? first : errorAt(lines, marked + 1);
    const to = next < 0 ? first : next;
    onFollow(false);
    setMarked(to);
    rows.scrollToIndex(to, { align: "center" });
  };
  const digits = String(count).length;
  return (
    <>
      <div className={classes.bar}>
        <Switch
          size="xs"
          label="Follow new lines"
          checked={follow}
          onChange={(event) => onFollow(event.currentTarget.checked)}
        />
        <Switch size="xs" label="Wrap lines" checked={wrap} onChange={(event) => onWrap(event.currentTarget.checked)} />
        <Button size="compact-xs" variant="default" disabled={first < 0} onClick={jump}>
          {first < 0 ? "No error found" : marked === null ? "Go to the first error" : "Next error"}
        </Button>
        {aside}
      </div>
      <div
        ref={box}
        className={classes.box}
        data-wrap={wrap}
        tabIndex={0}
        role="log"
        aria-label="Log lines"
        aria-live="off"
        onWheel={() => onFollow(atEnd(box.current))}
        onKeyUp={() => onFollow(atEnd(box.current))}
        onTouchEnd={() => onFollow(atEnd(box.current))}
      >
        <div className={classes.lines} style={{ height: rows.getTotalSize() }}>
          {rows.getVirtualItems().map(({ index, start }) => {
            const line = lines[index]!;
            return (
              <div
                key={index}
                ref={wrap ? rows.measureElement : undefined}
                data-index={index}
                className={line.heading ? classes.heading : classes.line}
                data-marked={index === marked}
                style={{ transform: `translateY(${start}px)`, ...(wrap ? { minHeight: LINE } : { height: LINE }) }}
              >
                {!line.heading && (
                  <span aria-hidden style={{ width: `${digits}ch` }}>
                    {line.number}
                  </span>
                )}
                <Marked text={line.text} search={line.heading ? "" : search} />
              </div>
            );
          })}
        </div>
      </div>
    </>
  );
}

/** A line in which the searched text is bold. */
function Marked({ text, search }: { text: string; search: string }) {
  const at = search === "" ? -1 : text.toLowerCase().indexOf(search.toLowerCase());
  if (at < 0) return <>{text}</>;
  return (
    <>
      {text.slice(0, at)}
      <mark>{text.slice(at, at + search.length)}</mark>
      {text.slice(at + search.length)}
    </>
  );
}

function atEnd(box: HTMLElement | null): boolean {
  return box === null || box.scrollHeight - box.scrollTop - box.clientHeight < 30;
}

/** Return whether more of these logs may come. The last lines often come after the trial has ended. */
function mayGrow(trial: TrialWithSegments, logs: readonly { complete: boolean }[]): boolean {
  if (!hasEnded(trial.state)) return true;
  if (logs.length > 0 && logs.every((log) => log.complete)) return false;
  // A trial's ranks may exit only some time after the trial has ended.
  const endings = [trial, ...trial.segments].map((one) => Date.parse(one.ended_at ?? "")).filter(Number.isFinite);
  return serviceTime() - Math.max(...endings) < LATE_MS;
}

function ranksOf(parts: readonly { rank: number }[], chosen: string): number[] {
  const all = new Set(parts.map((part) => part.rank));
  if (chosen) all.add(Number(chosen));
  return [...all].sort((a, b) => a - b);
}
