import { Anchor } from "@mantine/core";
import { useMediaQuery } from "@mantine/hooks";
import {
  functionalUpdate,
  getCoreRowModel,
  useReactTable,
  type ColumnDef,
  type ColumnPinningState,
  type VisibilityState,
} from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, type MouseEvent } from "react";
import { usePrinting } from "../../print";
import type { Experiment, Trial, TrialState } from "../../api/types";
import type { Call } from "../../charts/copies";
import { shortened } from "../../charts/dimensions";
import { BY_FRONT } from "../../charts/pareto";
import type { Rows } from "../../charts/save";
import { colourAt, identityColour, MOST_PICKED, rankedOf, shareOfRank, type Theme } from "../../curves/colours";
import type { Expected } from "../../curves/expected";
import { frontsIn, type Rows as Page } from "../../live/changes";
import { changesParams } from "../trial/Schedule";
import { Breakable } from "../common/Breakable";
import { Panel } from "../common/Panel";
import { SaveMenu } from "../common/SaveMenu";
import { ColumnMenu } from "./ColumnMenu";
import { gapStyle, NUMBER_WIDTH, PINNED_WIDTH, placeStyle, type Drawn } from "./places";
import {
  BRIEF,
  columnsOf,
  EXPECTED,
  FRONT,
  isParam,
  metaOf,
  MOST_IN_HEAD,
  serverColumn,
  type Column,
  type Sort,
} from "./trialColumns";
import { runsWords, TrialRow } from "./TrialRow";
import classes from "./TrialTable.module.css";
import { useKeys } from "../common/useKeys";
import { useNewest } from "../common/useNewest";
import { useSame } from "../common/useSame";

/** The columns that a user has hidden, and those that stay in sight. */
export interface ColumnChoice {
  hidden: readonly string[];
  pinned: readonly string[];
}

interface TrialTableProps {
  experiment: Pick<
    Experiment,
    "metric" | "mode" | "scope" | "time_attr" | "objectives" | "labels" | "counts" | "trials" | "scheduler" | "resolved"
  >;
  /** The trials of the charts. They determine which columns there are. */
  trials: readonly Trial[];
  /** The rows to show, filtered and sorted. If there are very many, these are the first ones, and `onMore` reads more. */
  rows: readonly Trial[];
  /** The number of trials that pass the filters. */
  total: number;
  onMore?: (() => void) | undefined;
  /** Reads all rows, if `rows` are only the first ones. */
  onAll?: (() => Promise<readonly Page[]>) | undefined;
  loading?: boolean;
  /** True if the service sorts, which it can do by most columns. */
  sortedByService?: boolean;
  rank: ReadonlyMap<number, number>;
  /** What is expected of the trials after repeats; null without repeats. */
  expected?: Expected | null;
  /** With several objectives: the fronts of the trials, by number, from 1 for the Pareto front. */
  fronts?: ReadonlyMap<number, number> | null;
  /** The color of a trial's dot; by default, that of its rank. */
  colourOf?: (trial: Trial) => string | null;
  theme: Theme;
  state: TrialState | null;
  onState: (state: TrialState | null) => void;
  sort: Sort;
  onSort: (sort: Sort) => void;
  /** Other filters in words, each with a function that removes it. */
  chips: readonly { label: string; clear: () => void }[];
  /** Removes all filters. */
  onShowAll: () => void;
  selected: number | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
  /** The picked trials, each with a color of its own, and the functions that change them. */
  picked: readonly number[];
  onPick: (change: (picked: readonly number[]) => readonly number[]) => void;
  onCompare: () => void;
  /** The call that gives the rows; without it, they cannot be saved. */
  call?: Call;
  choice: ColumnChoice;
  onChoice: (change: (choice: ColumnChoice) => ColumnChoice) => void;
}

const UNPICK = "[aria-label^='Unpick']";
const ROW = 31;
/** The height of a row on a phone. There, it has the configuration and the reason in up to four lines. */
const TALL_ROW = 68;
const STATES: TrialState[] = ["running", "pending", "paused", "completed", "stopped", "failed", "cancelled"];
const ALWAYS = ["number", "best"];
/** With more parameters than this, only the columns in view are drawn, each as wide as a pinned one. */
const MOST_PARAMS = 40;
/** The maximum number of rows on paper. */
const MOST_PRINTED = 500;
/** The number of columns that are drawn on either side of those in view. */
const COLUMNS_BEYOND = 5;

export function TrialTable(props: TrialTableProps) {
  const {
    experiment,
    trials,
    rows,
    total,
    onMore,
    onAll,
    loading = false,
    sortedByService = false,
    rank,
    theme,
  } = props;
  const { state, onState, onShowAll, sort, onSort, chips, selected, onSelect, onPoint, picked, onPick, onCompare } =
    props;
  const { choice, onChoice, call, colourOf, expected = null, fronts = null } = props;
  const scroll = useRef<HTMLDivElement>(null);
  const phone = useMediaQuery("(max-width: 640px)") ?? false;
  const height = phone ? TALL_ROW : ROW;

  const { metric, time_attr, objectives, scope, labels } = experiment;
  const changing = changesParams(experiment);
  const found = useMemo(
    () => columnsOf(trials, metric, time_attr, objectives, scope, phone, labels, expected, fronts, changing),
    [trials, metric, time_attr, objectives, scope, phone, labels, expected, fronts, changing],
  );
  // Keep the same object while the columns are the same, or every row would be drawn again with every report.
  // The values of two columns depend on more than their trial: the fronts, and the expected values.
  const columns = useSame(found, [
    metric,
    fronts,
    expected,
    changing,
    JSON.stringify(labels),
    ...found.map((column) => `${column.id}\0${column.numeric}\0${column.decimals}`),
  ]);
  const definitions = useMemo(
    () =>
      columns.map((column): ColumnDef<Trial> => ({
        id: column.id,
        header: column.label,
        accessorFn: column.value,
        meta: column,
        size: column.id === "number" ? NUMBER_WIDTH : PINNED_WIDTH,
        enableHiding: !ALWAYS.includes(column.id),
        enableSorting: column.id !== BRIEF && (!sortedByService || serverColumn(column.id) !== null),
      })),
    [columns, sortedByService],
  );
  const { hidden, pinned } = choice;
  const visibility = useMemo(() => visibilityOf(hidden), [hidden]);
  const pinning = useMemo(() => pinningOf(pinned), [pinned]);
  const selection = useMemo(() => Object.fromEntries(picked.map((number) => [number, true])), [picked]);
  const table = useReactTable({
    data: rows as Trial[],
    columns: definitions,
    getRowId: (trial) => String(trial.number),
    getCoreRowModel: getCoreRowModel(),
    manualSorting: true,
    state: {
      sorting: [{ id: sort.column, desc: sort.descending }],
      columnVisibility: visibility,
      columnPinning: pinning,
      rowSelection: selection,
    },
    // The previous change may not have been drawn yet, so each one is applied to the newest choice.
    onColumnVisibilityChange: (updater) =>
      onChoice(({ hidden, pinned }) => {
        const next: VisibilityState = functionalUpdate(updater, visibilityOf(hidden));
        return { pinned, hidden: Object.keys(next).filter((id) => next[id] === false) };
      }),
    onColumnPinningChange: (updater) =>
      onChoice(({ hidden, pinned }) => {
        const next: ColumnPinningState = functionalUpdate(updater, pinningOf(pinned));
        return { hidden, pinned: (next.left ?? []).filter((id) => id !== "number") };
      }),
  });
  const shown = [...table.getLeftVisibleLeafColumns(), ...table.getCenterVisibleLeafColumns()];
  // Computed again only when the columns or their visibility change, not with every batch of reports.
  const layout = useSame(
    shown.map((column) => ({ column: metaOf(column), pinned: column.getIsPinned() ? column.getStart("left") : null })),
    [columns, ...shown.map((column) => `${column.id}\0${column.getIsPinned() ? column.getStart("left") : ""}`)],
  );

  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => height,
    overscan: 12,
  });
  useEffect(() => virtual.measure(), [virtual, height]);
  const printing = usePrinting();
  const inWindow = virtual.getVirtualItems();
  const items = printing ? rows.slice(0, MOST_PRINTED).map((_, index) => ({ index })) : inWindow;
  const before = printing ? 0 : (inWindow[0]?.start ?? 0);
  const after = printing ? 0 : virtual.getTotalSize() - (inWindow[inWindow.length - 1]?.end ?? 0);
  const last = inWindow[inWindow.length - 1]?.index ?? 0;
  useEffect(() => {
    if (onMore && last >= rows.length - 30) onMore();
  }, [onMore, last, rows.length]);

  // The columns of parameters that are not pinned lie beside each other. With very many, those out of view are gaps.
  const first = layout.findIndex(({ column, pinned }) => pinned === null && isParam(column));
  const params = layout.filter(({ column, pinned }) => pinned === null && isParam(column)).length;
  const narrow = params > MOST_PARAMS;
  const [paramsAt, setParamsAt] = useState(0);
  const measured = useCallback((gap: HTMLElement | null) => {
    if (gap) setParamsAt(gap.offsetLeft);
  }, []);
  const across = useVirtualizer({
    horizontal: true,
    count: narrow ? params : 0,
    getScrollElement: () => scroll.current,
    estimateSize: () => PINNED_WIDTH,
    overscan: COLUMNS_BEYOND,
    paddingStart: paramsAt,
  });
  const inView = across.getVirtualItems();
  const from = inView[0]?.index ?? 0;
  const to = inView.length > 0 ? inView[inView.length - 1]!.index + 1 : 0;
  const drawn = useMemo((): readonly Drawn[] => {
    const places = layout.map((place, index) => ({ ...place, index, narrow: false }));
    if (!narrow) return places;
    const end = first + params;
    return [
      ...places.slice(0, first),
      { gap: from * PINNED_WIDTH },
      ...places.slice(first + from, first + to).map((place) => ({ ...place, narrow: true })),
      { gap: (params - to) * PINNED_WIDTH },
      ...places.slice(end),
    ];
  }, [layout, narrow, first, params, from, to]);

  // The brief column ends where the screen does, so that no value of the next one is cut; what is left of it depends on the names.
  useLayoutEffect(() => {
    const head = scroll.current?.querySelector<HTMLElement>("th[data-column=brief]");
    if (head) scroll.current!.style.setProperty("--brief", `${scroll.current!.clientWidth - head.offsetLeft}px`);
  }, [phone, layout, rows.length, picked.length]);

  // The head of the table and the pinned columns do not hide the control with the focus.
  const pinnedWidth = table.getLeftTotalSize();
  useLayoutEffect(() => {
    const head = scroll.current?.querySelector("thead");
    if (head) scroll.current!.style.setProperty("--head", `${head.offsetHeight}px`);
    scroll.current?.style.setProperty("--pinned", `${pinnedWidth}px`);
  }, [phone, layout, pinnedWidth]);

  const [newest, choose] = useNewest(selected, onSelect);
  const go = (by: 1 | -1) => {
    const now = newest();
    const at = rows.findIndex((trial) => trial.number === now);
    const next = Math.min(Math.max(at === -1 ? 0 : at + by, 0), rows.length - 1);
    const trial = rows[next];
    if (!trial) return;
    virtual.scrollToIndex(next);
    choose(trial.number);
  };
  const pick = (number: number) => onPick((now) => toggled(now, number));
  // The bar of the picked trials grows above the table. The page moves by as much, so that the row stays under the mouse. At its
  // top it cannot move up: then what the bar leaves stays empty until the mouse is elsewhere.
  const bar = useRef<HTMLDivElement>(null);
  const restAt = useRef<number | null>(null);
  const [room, setRoom] = useState(0);
  const above = () => bar.current?.offsetHeight ?? 0;
  useLayoutEffect(() => {
    if (restAt.current === null) return;
    const top = restAt.current + above();
    restAt.current = null;
    window.scrollTo({ top });
    setRoom(scroll.current!.matches(":hover") ? Math.max(0, -top) : 0);
  }, [picked]);
  const onRow = useRef({ pick, choose, room });
  useEffect(() => {
    onRow.current = { pick, choose, room };
  });
  const [onPickRow] = useState(() => (number: number) => {
    restAt.current = window.scrollY - above() - onRow.current.room;
    onRow.current.pick(number);
  });
  const [onSelectRow] = useState(() => (number: number) => onRow.current.choose(number));
  useKeys({
    j: () => go(1),
    k: () => go(-1),
    x: () => {
      const now = newest();
      if (now !== null) pick(now);
    },
    c: () => picked.length > 1 && onCompare(),
  });

  /** Move the focus from a button that is gone after a click to another one of its kind beside it, or else to the table. */
  const leave = ({ currentTarget: button }: MouseEvent<HTMLElement>, kind: string) => {
    if (button !== document.activeElement) return;
    const beside = [button.nextElementSibling, button.previousElementSibling];
    const next = beside.find((one): one is HTMLElement => one instanceof HTMLElement && one.matches(kind));
    (next ?? scroll.current)?.focus({ preventScroll: true });
  };

  // A row or a column with the focus may leave the filters or the view. The focus goes to the table, where Tab continues.
  const focused = useRef<Element | null>(null);
  useLayoutEffect(() => {
    if (!focused.current || focused.current.isConnected) return;
    focused.current = null;
    if (document.activeElement === document.body) scroll.current?.focus({ preventScroll: true });
  });

  const counts = experiment.counts;
  const ranked = rankedOf(rank);
  const colours = useMemo(
    () => new Map(picked.map((number, i) => [number, identityColour(i, theme)])),
    [picked, theme],
  );

  const shownColumns = layout.map(({ column }) => column);
  const save = async () => {
    if (!onAll) return tableRows(rows, shownColumns);
    const pages = await onAll();
    const every = pages.flatMap(({ items }) => items);
    const front = fronts && frontsIn(pages);
    const own = columnsOf(every, metric, time_attr, objectives, scope, phone, labels, expected, front, changing);
    // The trials that had not been read yet may have more parameters.
    const first = layout.filter(({ pinned }) => pinned !== null).map(({ column }) => column.id);
    const others = own.filter(({ id }) => !first.includes(id) && !hidden.includes(id));
    return tableRows(every, [...first.flatMap((id) => own.filter((column) => column.id === id)), ...others]);
  };

  const head = (place: Drawn, i: number) => {
    if ("gap" in place)
      return <td key={i} ref={i === first ? measured : null} aria-hidden style={gapStyle(place.gap)} />;
    const tableColumn = shown[place.index]!;
    const column = metaOf(tableColumn);
    const active = sort.column === column.id;
    const flip = () =>
      onSort({
        column: column.id,
        descending: active
          ? !sort.descending
          : (column.id === "best" || column.id === EXPECTED) && experiment.mode === "max",
      });
    const name = shortened(column.label, MOST_IN_HEAD);
    const isCut = name !== column.label;
    const hint = isCut ? [column.label, column.hint].filter(Boolean).join(": ") : column.hint;
    return (
      <th
        key={column.id}
        scope="col"
        data-numeric={column.numeric}
        data-pinned={place.pinned !== null}
        data-column={isParam(column) ? "param" : column.id}
        data-narrow={place.narrow || undefined}
        aria-colindex={narrow ? place.index + 1 : undefined}
        style={placeStyle(place)}
        title={column.id === FRONT ? BY_FRONT : undefined}
        aria-sort={active ? (sort.descending ? "descending" : "ascending") : "none"}
      >
        {tableColumn.getCanSort() ? (
          <button type="button" title={hint} aria-label={isCut ? column.label : undefined} onClick={flip}>
            <Breakable name={name} end={<i aria-hidden>{active ? (sort.descending ? "▾" : "▴") : ""}</i>} />
          </button>
        ) : (
          <span title={hint}>{name}</span>
        )}
      </th>
    );
  };

  return (
    <Panel
      flush
      title={
        total === experiment.trials
          ? `Trials · ${total.toLocaleString("en")}`
          : `Trials · ${total.toLocaleString("en")} of ${experiment.trials.toLocaleString("en")}`
      }
      aside={
        <div className={classes.filters} role="group" aria-label="Filter by state">
          {chips.map(({ label, clear }) => (
            <button
              type="button"
              key={label}
              className={classes.chip}
              aria-label={`Remove the filter ${label}`}
              onClick={(event) => {
                leave(event, "button");
                clear();
              }}
            >
              {label} <b aria-hidden>×</b>
            </button>
          ))}
          <button type="button" aria-pressed={state === null} onClick={() => onState(null)}>
            all
          </button>
          {STATES.filter((one) => counts[one] > 0 || state === one).map((one) => (
            <button
              type="button"
              key={one}
              aria-pressed={state === one}
              onClick={() => onState(state === one ? null : one)}
            >
              {one} <b>{counts[one]}</b>
            </button>
          ))}
          <ColumnMenu columns={table.getAllLeafColumns()} />
          {call && <SaveMenu name="trials" picture={false} rows={save} call={call} />}
        </div>
      }
    >
      {picked.length > 0 && (
        <div ref={bar} className={classes.picked} role="group" aria-label="Picked trials">
          <span>Picked:</span>
          {picked.map((number) => (
            <button
              key={number}
              type="button"
              onClick={(event) => {
                leave(event, UNPICK);
                pick(number);
              }}
              aria-label={`Unpick trial ${number}`}
            >
              <i style={{ background: colours.get(number) }} aria-hidden /> {number} <b aria-hidden>×</b>
            </button>
          ))}
          <button type="button" data-main disabled={picked.length < 2} onClick={onCompare}>
            {picked.length < 2 ? "Pick another one to compare" : `Compare ${picked.length} trials`}
          </button>
          <button
            type="button"
            onClick={(event) => {
              leave(event, UNPICK);
              onPick(() => []);
            }}
          >
            Clear
          </button>
        </div>
      )}
      {room > 0 && <div aria-hidden style={{ height: room }} />}
      {expected && (
        <p className={classes.hint}>
          Some configurations were run several times. Trials are ranked by the {metric} expected of their configuration:
          the mean of its runs, moved towards the results of the other configurations to correct for luck.
        </p>
      )}
      <div
        ref={scroll}
        className={`${classes.scroll} sideways`}
        onMouseLeave={() => {
          onPoint(null);
          setRoom(0);
        }}
        onFocus={({ target, currentTarget }) => {
          focused.current = target;
          if (target.matches(":focus-visible")) moveIntoView(currentTarget, target);
        }}
        onBlur={() => (focused.current = null)}
        tabIndex={0}
        role="region"
        aria-label="Trials"
      >
        <table
          className={classes.table}
          aria-label="Trials"
          aria-rowcount={total + 1}
          aria-colcount={narrow ? shown.length : undefined}
        >
          <thead>
            <tr>{drawn.map(head)}</tr>
          </thead>
          <tbody>
            {before > 0 && <tr aria-hidden style={{ height: before }} />}
            {items.map((item) => {
              const trial = rows[item.index]!;
              const place = rank.get(trial.number);
              const byRank = place === undefined ? null : colourAt(shareOfRank(place, ranked), theme);
              return (
                <TrialRow
                  key={trial.number}
                  trial={trial}
                  drawn={drawn}
                  index={item.index}
                  height={height}
                  selected={trial.number === selected}
                  picked={colours.get(trial.number) ?? null}
                  full={picked.length >= MOST_PICKED}
                  colour={colourOf ? colourOf(trial) : byRank}
                  runs={expected && runsWords(expected.runs(trial))}
                  byFront={fronts !== null}
                  onSelect={onSelectRow}
                  onPoint={onPoint}
                  onPick={onPickRow}
                />
              );
            })}
            {after > 0 && <tr aria-hidden style={{ height: after }} />}
          </tbody>
        </table>
        {rows.length === 0 && (
          <p className={classes.none}>
            {loading
              ? "Reading the trials…"
              : experiment.trials
                ? state && chips.length === 0
                  ? `No trial is in the state “${state}”.`
                  : "No trial passes these filters."
                : "No trial has been started yet."}
            {!loading && experiment.trials > 0 && (
              <>
                {" "}
                <Anchor
                  component="button"
                  type="button"
                  size="sm"
                  onClick={(event) => {
                    leave(event, UNPICK);
                    onShowAll();
                  }}
                >
                  Show all trials
                </Anchor>
              </>
            )}
          </p>
        )}
        {printing && items.length < total && (
          <p className={classes.hint}>
            The first {items.length.toLocaleString("en")} of {total.toLocaleString("en")} trials are printed.
          </p>
        )}
      </div>
    </Panel>
  );
}

/**
 * Move the table sideways until this control of it is between the pinned columns and the edge, or at least its beginning is.
 * Chromium is content if 32 pixels of it are in view.
 */
function moveIntoView(box: HTMLElement, control: Element): void {
  const cell = control.closest("th, td");
  if (!cell || cell.matches("[data-pinned=true]")) return;
  const pinned = [...cell.parentElement!.querySelectorAll("[data-pinned=true]")].at(-1);
  const { left, right } = control.getBoundingClientRect();
  const start = pinned?.getBoundingClientRect().right ?? box.getBoundingClientRect().left;
  const end = box.getBoundingClientRect().left + box.clientWidth;
  if (left < start || right > end) box.scrollLeft += Math.min(left - start, Math.max(right - end, 0));
}

/** The rows with the columns that are shown. */
function tableRows(rows: readonly Trial[], shown: readonly Column[]): Rows {
  const value = (trial: Trial, column: Column) => (column.id === "state" ? trial.state : column.value(trial));
  const columns = shown.filter(({ id }) => id !== BRIEF);
  return [columns.map((column) => column.label), ...rows.map((trial) => columns.map((column) => value(trial, column)))];
}

/** Return the picked trials after a click on this one. If there are more trials than colors, the first one is dropped. */
export function toggled(picked: readonly number[], number: number): readonly number[] {
  if (picked.includes(number)) return picked.filter((one) => one !== number);
  return [...picked, number].slice(-MOST_PICKED);
}

function visibilityOf(hidden: readonly string[]): VisibilityState {
  return Object.fromEntries(hidden.filter((id) => !ALWAYS.includes(id)).map((id) => [id, false]));
}

function pinningOf(pinned: readonly string[]) {
  return { left: ["number", ...pinned.filter((id) => id !== "number")] };
}
