import { Anchor, Button } from "@mantine/core";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { all, api, from, PAGE } from "../../api/client";
import type { Experiment, LogEntry } from "../../api/types";
import { logCall } from "../../charts/copies";
import type { Rows } from "../../charts/save";
import { moment } from "../../format";
import { keys } from "../../live/keys";
import type { Address } from "../../pages/useAddress";
import classes from "./EventsTab.module.css";
import { eventWords, grouped, GROUPS, groupWords, kindsOf, iterationsOf } from "./eventWords";
import { chosenTrial, KindChips, TrialFilter } from "../trial/LogFilters";
import { Clock } from "../common/Clock";
import { Panel } from "../common/Panel";
import parts from "../common/parts.module.css";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";
import { Loading } from "../common/Loading";

const REFRESH_MS = 3000;

interface EventsTabProps {
  experiment: Experiment;
  address: Address;
  onSelect: (number: number) => void;
}

/** Everything that happened, newest first, filtered by the service. */
export default function EventsTab({ experiment, address, onSelect }: EventsTabProps) {
  const chosen = chosenGroups(address.get);
  const trial = chosenTrial(address);
  const kind = kindsOf(chosen);
  const wanted = { kind, ...(trial !== undefined && { trial }) };
  // A refetch reads all loaded pages again, so it happens only if the log has grown since the last one began.
  const upto = experiment.last_event_seq;
  const query = useInfiniteQuery({
    queryKey: [...keys.experiment(experiment.id), "log", kind.join(), trial ?? null],
    queryFn: async ({ pageParam, signal }) => {
      const asked = { ...wanted, page_size: 200, ...(pageParam && { page_token: pageParam }) };
      const page = await api.log(experiment.id, asked, signal);
      return { ...page, upto };
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_page_token ?? undefined,
    refetchInterval: ({ state }) => (state.data?.pages[0]?.upto !== upto ? REFRESH_MS : false),
    placeholderData: (old) => old,
  });
  const entries = query.data?.pages.flatMap((page) => page.items) ?? [];
  const iterations = iterationsOf(entries);
  const everyRow = async () => {
    if (!query.hasNextPage) return entryRows(entries, iterations);
    const found = await all((token) => api.log(experiment.id, { ...wanted, page_size: PAGE, ...from(token) }));
    return entryRows(found, iterationsOf(found));
  };
  // A group grows at both ends: by newer events, and by those of the next page. An event that was in it when it was opened stays.
  const [opened, setOpened] = useState<ReadonlySet<number>>(new Set());
  // Whoever has chosen a kind wants to see each event of it.
  const rows = chosen.length > 0 ? entries : grouped(entries);
  return (
    <Panel
      flush
      title="Events"
      aside={
        <div className={parts.filterRow}>
          <KindChips
            kinds={GROUPS.map((group) => group.label)}
            chosen={chosen}
            onChange={(change) => address.set((get) => ({ event: change(chosenGroups(get)).join(",") }))}
          />
          <TrialFilter address={address} />
          <SaveMenu
            name={`${experiment.name} events`}
            picture={false}
            rows={everyRow}
            call={logCall(experiment.id, { kind, trial })}
          />
        </div>
      }
    >
      {query.isError && !query.data && (
        <ProblemBox error={query.error} what="list of events" retry={() => void query.refetch()} />
      )}
      <p className={classes.hint}>
        {chosen.length === 0 && "All but reports and decisions. Choose groups above to see other events. "}A segment is
        one uninterrupted run of a trial: a pause, a failure or an exploit ends it, and the trial continues in the next
        one. A trial starts sooner in processes that an earlier one has used.
      </p>
      {query.isLoading && <Loading what="events" height={240} />}
      {query.data && entries.length === 0 && (
        <p className={parts.none}>
          {chosen.length > 0 || trial !== undefined ? "No event matches." : "Nothing has happened yet."}{" "}
          {(chosen.length > 0 || trial !== undefined) && (
            <Button size="compact-xs" variant="default" onClick={() => address.set({ event: null, of: null })}>
              Show all
            </Button>
          )}
        </p>
      )}
      {entries.length > 0 && (
        <ol className={classes.list} aria-label="Events, newest first">
          {rows.map((row, i) =>
            "seq" in row ? (
              <Entry
                key={row.seq}
                entry={row}
                before={timeOf(rows[i - 1])}
                iterations={iterations}
                onSelect={onSelect}
              />
            ) : (
              <Group
                key={`with ${anchorOf(row, opened)}`}
                entries={row}
                before={timeOf(rows[i - 1])}
                onOpen={() => setOpened(new Set([...opened, anchorOf(row, opened)]))}
                iterations={iterations}
                onSelect={onSelect}
              />
            ),
          )}
        </ol>
      )}
      {query.hasNextPage && (
        <Button
          m="xs"
          size="compact-xs"
          variant="default"
          loading={query.isFetchingNextPage}
          onClick={() => void query.fetchNextPage()}
        >
          Older events
        </Button>
      )}
    </Panel>
  );
}

/** Return the time of a row, which for a group is that of its newest event. */
function timeOf(row: LogEntry | readonly LogEntry[] | undefined): string | undefined {
  return row && ("seq" in row ? row : row[0]!).time;
}

/** Return the event by which a group is known: the one by which it has been opened or, before that, its oldest one. */
function anchorOf(entries: readonly LogEntry[], opened: ReadonlySet<number>): number {
  return (entries.find(({ seq }) => opened.has(seq)) ?? entries[entries.length - 1]!).seq;
}

interface GroupProps extends Omit<EntryProps, "entry"> {
  /** The newest one first. */
  entries: readonly LogEntry[];
  onOpen: () => void;
}

/** Several events that each tell little, as one line that can be opened. */
function Group({ entries, before, onOpen, ...rest }: GroupProps) {
  const [open, setOpen] = useState(false);
  const newest = entries[0]!;
  const toggle = () => {
    if (!open) onOpen();
    setOpen(!open);
  };
  return (
    <>
      <li>
        <Clock time={newest.time} before={before} title={`until ${moment(newest.time)}`} />
        <span className={classes.trial} />
        <span className={classes.group}>
          {groupWords(entries)}
          <button type="button" className={classes.more} aria-expanded={open} onClick={toggle}>
            {open ? "show as one line" : `show all ${entries.length}`}
          </button>
        </span>
      </li>
      {open &&
        entries.map((entry, i) => (
          <Entry key={entry.seq} entry={entry} before={(entries[i - 1] ?? newest).time} {...rest} />
        ))}
    </>
  );
}

interface EntryProps {
  entry: LogEntry;
  /** The time of the row before; absent for the first row. */
  before: string | undefined;
  /** The iterations of checkpoints, by their ids. */
  iterations: ReadonlyMap<string, number>;
  onSelect: (number: number) => void;
}

function Entry({ entry, before, iterations, onSelect }: EntryProps) {
  const [open, setOpen] = useState(false);
  const { text, more } = eventWords(entry, iterations);
  const failed = entry.kind === "segment_ended" && entry.data["outcome"] === "failed";
  return (
    <li>
      <Clock time={entry.time} before={before} />
      <span className={classes.trial}>
        {entry.trial_number !== null && (
          <Anchor component="button" type="button" size="xs" onClick={() => onSelect(entry.trial_number!)}>
            trial {entry.trial_number}
          </Anchor>
        )}
      </span>
      <span className={classes.words} data-tone={failed ? "bad" : undefined}>
        {text}
        {more && (
          <button type="button" className={classes.more} aria-expanded={open} onClick={() => setOpen(!open)}>
            {open ? "less" : "details"}
          </button>
        )}
        {open && (
          <pre className={parts.code} tabIndex={0}>
            {more}
          </pre>
        )}
      </span>
    </li>
  );
}

function entryRows(entries: readonly LogEntry[], iterations: ReadonlyMap<string, number>): Rows {
  return [
    ["seq", "time", "kind", "trial", "words", "data"],
    ...entries.map((one) => [
      one.seq,
      one.time,
      one.kind,
      one.trial_number,
      eventWords(one, iterations).text,
      one.data,
    ]),
  ];
}

function chosenGroups(get: Address["get"]): string[] {
  return (get("event") ?? "").split(",").filter((label) => GROUPS.some((one) => one.label === label));
}
