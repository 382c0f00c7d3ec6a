import { Anchor } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useMemo, useRef, useState } from "react";
import type { Experiment, Trial, TrialState } from "../api/types";
import { duration, number, param } from "../format";
import { colourAt, ranks, shareOfRank, type Theme } from "../curves/colours";
import { Panel } from "./Panel";
import { StateBadge } from "./StateBadge";
import classes from "./TrialTable.module.css";
import { columnsOf, sortTrials, type Column, type Sort } from "./trialColumns";

interface TrialTableProps {
  experiment: Pick<Experiment, "metric" | "mode" | "time_attr">;
  trials: readonly Trial[];
  theme: Theme;
  selected: number | null;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
}

const ROW = 31;
const STATES: TrialState[] = ["running", "pending", "paused", "completed", "stopped", "failed", "cancelled"];

export function TrialTable({ experiment, trials, theme, selected, onSelect, onPoint }: TrialTableProps) {
  const [shown, setShown] = useState<TrialState | null>(null);
  const best: Sort = { column: "best", descending: experiment.mode === "max" };
  const [sort, setSort] = useState<Sort>(best);
  const scroll = useRef<HTMLDivElement>(null);

  const found = useMemo(() => columnsOf(trials, experiment.metric, experiment.time_attr), [trials, experiment.metric, experiment.time_attr]);
  // The same object while the columns are the same, or every row would be drawn again with every report.
  const columns = useMemo(() => found, [found.map((column) => `${column.id}\0${column.numeric}`).join("\0"), experiment.metric]);
  const rank = useMemo(() => ranks(trials, experiment.mode), [trials, experiment.mode]);
  const rows = useMemo(
    () => sortTrials(shown ? trials.filter((trial) => trial.state === shown) : trials, columns, sort),
    [trials, shown, columns, sort],
  );
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => scroll.current, estimateSize: () => ROW, overscan: 12 });
  const items = virtual.getVirtualItems();
  const before = items[0]?.start ?? 0;
  const after = virtual.getTotalSize() - (items[items.length - 1]?.end ?? 0);

  const counts = new Map<TrialState, number>();
  for (const trial of trials) counts.set(trial.state, (counts.get(trial.state) ?? 0) + 1);

  const head = (column: Column) => {
    const active = sort.column === column.id;
    const flip = () => setSort({ column: column.id, descending: active ? !sort.descending : column.id === "best" ? best.descending : false });
    return (
      <th key={column.id} scope="col" data-numeric={column.numeric} aria-sort={active ? (sort.descending ? "descending" : "ascending") : "none"}>
        <button type="button" onClick={flip}>{column.label}<i aria-hidden>{active ? (sort.descending ? "▾" : "▴") : ""}</i></button>
      </th>
    );
  };

  return (
    <Panel
      flush
      title={`Trials · ${trials.length}`}
      aside={
        <div className={classes.filters} role="group" aria-label="Filter by state">
          <button type="button" aria-pressed={shown === null} onClick={() => setShown(null)}>all</button>
          {STATES.filter((state) => counts.has(state) || shown === state).map((state) => (
            <button type="button" key={state} aria-pressed={shown === state} onClick={() => setShown(shown === state ? null : state)}>
              {state} <b>{counts.get(state) ?? 0}</b>
            </button>
          ))}
        </div>
      }
    >
      <div ref={scroll} className={classes.scroll} onMouseLeave={() => onPoint(null)}>
        <table className={classes.table} aria-rowcount={rows.length + 1}>
          <thead><tr>{columns.map(head)}</tr></thead>
          <tbody>
            {before > 0 && <tr aria-hidden style={{ height: before }} />}
            {items.map((item) => {
              const trial = rows[item.index]!;
              const place = rank.get(trial.number);
              return (
                <Row
                  key={trial.number} trial={trial} columns={columns} index={item.index} selected={trial.number === selected}
                  colour={place === undefined ? null : colourAt(shareOfRank(place, rank.size), theme)} onSelect={onSelect} onPoint={onPoint}
                />
              );
            })}
            {after > 0 && <tr aria-hidden style={{ height: after }} />}
          </tbody>
        </table>
        {rows.length === 0 && <p className={classes.none}>{trials.length ? `No trial is ${shown}.` : "No trial has been started yet."}</p>}
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
      aria-rowindex={index + 2} aria-selected={selected} style={{ height: ROW }}
      onMouseEnter={() => onPoint(trial.number)}
      onClick={(event) => !(event.target as Element).closest("a") && onSelect(trial.number)}
    >
      {columns.map((column) => (
        <td key={column.id} data-numeric={column.numeric} data-column={column.id.startsWith("param:") ? "param" : column.id}>
          <Cell trial={trial} column={column} colour={colour} onSelect={onSelect} />
        </td>
      ))}
    </tr>
  );
});

function Cell({ trial, column, colour, onSelect }: { trial: Trial; column: Column; colour: string | null; onSelect: (number: number) => void }) {
  switch (column.id) {
    case "number":
      return (
        <Anchor
          size="sm" href={`/trials/${trial.id}`}
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
      return <span title={trial.reason}><StateBadge state={trial.state} /></span>;
    case "best":
      return <><i className={classes.swatch} style={{ background: colour ?? "transparent" }} aria-hidden />{number(trial.best_value)}</>;
    case "feasible":
      return param(column.value(trial) ?? "–");
    case "last":
      return number(trial.last_value);
    case "running_s":
      return trial.running_s > 0 ? duration(trial.running_s) : "–";
    case "reason": {
      const text = trial.state === "failed" ? (trial.error?.message ?? trial.reason) : (trial.waiting ?? trial.reason);
      return <span title={text}>{text}</span>;
    }
    default:
      return param(column.value(trial));
  }
}
