import { Anchor } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useMemo, useRef } from "react";
import type { Experiment, Trial, TrialState } from "../api/types";
import { duration, metric, param } from "../format";
import { colourAt, shareOfRank, type Theme } from "../curves/colours";
import { ROOT } from "../api/root";
import { Panel } from "./Panel";
import { StateBadge } from "./StateBadge";
import classes from "./TrialTable.module.css";
import { useKeys } from "./useKeys";
import { useSame } from "./useSame";
import { columnsOf, sortTrials, type Column, type Sort } from "./trialColumns";

interface TrialTableProps {
  experiment: Pick<Experiment, "metric" | "mode" | "time_attr" | "objectives">;
  trials: readonly Trial[];
  /** They have not been read yet. */
  loading?: boolean;
  /** Those of them that pass every filter. */
  shown: readonly Trial[];
  rank: ReadonlyMap<number, number>;
  theme: Theme;
  state: TrialState | null;
  onState: (state: TrialState | null) => void;
  sort: Sort;
  onSort: (sort: Sort) => void;
  /** Other filters in words, each with a way to take it back. */
  chips: readonly { label: string; clear: () => void }[];
  selected: number | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
}

const ROW = 31;
const STATES: TrialState[] = ["running", "pending", "paused", "completed", "stopped", "failed", "cancelled"];

export function TrialTable(props: TrialTableProps) {
  const {
    experiment,
    trials,
    loading = false,
    shown,
    rank,
    theme,
    state,
    onState,
    sort,
    onSort,
    chips,
    selected,
    onSelect,
    onPoint,
  } = props;
  const scroll = useRef<HTMLDivElement>(null);

  const found = useMemo(
    () => columnsOf(trials, experiment.metric, experiment.time_attr, experiment.objectives),
    [trials, experiment.metric, experiment.time_attr, experiment.objectives],
  );
  // The same object while the columns are the same, or every row would be drawn again with every report.
  const columns = useSame(
    found,
    [experiment.metric, ...found.map((column) => `${column.id}\0${column.numeric}`)].join("\0"),
  );
  const rows = useMemo(() => sortTrials(shown, columns, sort), [shown, columns, sort]);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW,
    overscan: 12,
  });
  const go = (by: 1 | -1) => {
    const at = rows.findIndex((trial) => trial.number === selected);
    const next = Math.min(Math.max(at === -1 ? 0 : at + by, 0), rows.length - 1);
    const trial = rows[next];
    if (!trial) return;
    virtual.scrollToIndex(next);
    onSelect(trial.number);
  };
  useKeys({ j: () => go(1), k: () => go(-1) });
  const items = virtual.getVirtualItems();
  const before = items[0]?.start ?? 0;
  const after = virtual.getTotalSize() - (items[items.length - 1]?.end ?? 0);

  const counts = new Map<TrialState, number>();
  for (const trial of trials) counts.set(trial.state, (counts.get(trial.state) ?? 0) + 1);

  const head = (column: Column) => {
    const active = sort.column === column.id;
    const flip = () =>
      onSort({
        column: column.id,
        descending: active ? !sort.descending : column.id === "best" && experiment.mode === "max",
      });
    return (
      <th
        key={column.id}
        scope="col"
        data-numeric={column.numeric}
        aria-sort={active ? (sort.descending ? "descending" : "ascending") : "none"}
      >
        <button type="button" onClick={flip}>
          {column.label}
          <i aria-hidden>{active ? (sort.descending ? "▾" : "▴") : ""}</i>
        </button>
      </th>
    );
  };

  return (
    <Panel
      flush
      title={
        rows.length === trials.length ? `Trials · ${trials.length}` : `Trials · ${rows.length} of ${trials.length}`
      }
      aside={
        <div className={classes.filters} role="group" aria-label="Filter by state">
          {chips.map(({ label, clear }) => (
            <button
              type="button"
              key={label}
              className={classes.chip}
              aria-label={`Remove the filter ${label}`}
              onClick={clear}
            >
              {label} <b aria-hidden>×</b>
            </button>
          ))}
          <button type="button" aria-pressed={state === null} onClick={() => onState(null)}>
            all
          </button>
          {STATES.filter((one) => counts.has(one) || state === one).map((one) => (
            <button
              type="button"
              key={one}
              aria-pressed={state === one}
              onClick={() => onState(state === one ? null : one)}
            >
              {one} <b>{counts.get(one) ?? 0}</b>
            </button>
          ))}
        </div>
      }
    >
      <div ref={scroll} className={classes.scroll} onMouseLeave={() => onPoint(null)}>
        <table className={classes.table} aria-rowcount={rows.length + 1}>
          <thead>
            <tr>{columns.map(head)}</tr>
          </thead>
          <tbody>
            {before > 0 && <tr aria-hidden style={{ height: before }} />}
            {items.map((item) => {
              const trial = rows[item.index]!;
              const place = rank.get(trial.number);
              return (
                <Row
                  key={trial.number}
                  trial={trial}
                  columns={columns}
                  index={item.index}
                  selected={trial.number === selected}
                  colour={place === undefined ? null : colourAt(shareOfRank(place, rank.size), theme)}
                  onSelect={onSelect}
                  onPoint={onPoint}
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
              : trials.length
                ? state && chips.length === 0
                  ? `No trial is ${state}.`
                  : "No trial passes these filters."
                : "No trial has been started yet."}
          </p>
        )}
      </div>
    </Panel>
  );
}

interface RowProps {
  trial: Trial;
  columns: readonly Column[];
  index: number;
  selected: boolean;
  colour: string | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
}

const Row = memo(function Row({ trial, columns, index, selected, colour, onSelect, onPoint }: RowProps) {
  return (
    <tr
      aria-rowindex={index + 2}
      aria-selected={selected}
      style={{ height: ROW }}
      onMouseEnter={() => onPoint(trial.number)}
      onClick={(event) => !(event.target as Element).closest("a") && onSelect(trial.number)}
    >
      {columns.map((column) => (
        <td
          key={column.id}
          data-numeric={column.numeric}
          data-column={column.id.startsWith("param:") ? "param" : column.id}
        >
          <Cell trial={trial} column={column} colour={colour} onSelect={onSelect} />
        </td>
      ))}
    </tr>
  );
});

function Cell({
  trial,
  column,
  colour,
  onSelect,
}: {
  trial: Trial;
  column: Column;
  colour: string | null;
  onSelect: (number: number) => void;
}) {
  switch (column.id) {
    case "number":
      return (
        <Anchor
          size="sm"
          href={`${ROOT}trials/${trial.id}`}
          onClick={(event) => {
            if (event.metaKey || event.ctrlKey || event.shiftKey) return;
            event.preventDefault();
            onSelect(trial.number);
          }}
        >
          {trial.number}
        </Anchor>
      );
    case "state":
      return (
        <span title={trial.reason}>
          <StateBadge state={trial.state} />
        </span>
      );
    case "best":
      return (
        <>
          <i className={classes.swatch} style={{ background: colour ?? "transparent" }} aria-hidden />
          {metric(trial.best_value)}
        </>
      );
    case "feasible":
      return param(column.value(trial) ?? "–");
    case "last":
      return metric(trial.last_value);
    case "iteration":
      return trial.iteration;
    case "running_s":
      return trial.running_s > 0 ? duration(trial.running_s) : "–";
    case "reason": {
      const text = trial.state === "failed" ? (trial.error?.message ?? trial.reason) : (trial.waiting ?? trial.reason);
      return <span title={text}>{text}</span>;
    }
    default:
      return column.id.startsWith("metric:")
        ? metric(column.value(trial) as number | null | undefined)
        : param(column.value(trial));
  }
}
