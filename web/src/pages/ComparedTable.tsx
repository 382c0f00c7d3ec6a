import { Anchor, Switch, useComputedColorScheme } from "@mantine/core";
import { Link } from "react-router";
import type { Experiment, Trial } from "../api/types";
import { identityColour } from "../curves/colours";
import { Breakable } from "../parts/common/Breakable";
import { Panel } from "../parts/common/Panel";
import { StateBadge } from "../parts/common/StateBadge";
import { useAtOnce } from "../parts/common/useAtOnce";
import type { ComparedRow } from "./compare";
import classes from "./ComparePage.module.css";
import type { Address } from "./useAddress";

interface ComparedTableProps {
  /** The compared trials or experiments, in the order of their colors. */
  columns: readonly {
    id: string;
    name: string;
    to: string;
    state: Trial["state"] | Experiment["state"];
    onRemove: () => void;
  }[];
  rows: readonly ComparedRow[];
  /** The columns of the best value, for rows that have one. */
  best: ReadonlyMap<ComparedRow, readonly number[]>;
  words: (row: ComparedRow, value: unknown) => string;
  /** A note below the table. */
  note?: string | null;
  address: Address;
}

/** Let the keyboard reach a cell whose text scrolls, and show that it does. If every cell were a tab stop, there would be hundreds. */
function reachable(cell: HTMLDivElement | null): void {
  if (!cell) return;
  const scrolls = cell.scrollHeight > cell.clientHeight + 1;
  cell.tabIndex = scrolls ? 0 : -1;
  cell.classList.toggle("upAndDown", scrolls);
}

/** The maximum width before the point for which every number of a group makes room, in digits. */
const MOST_WHOLE = 7;
/** The width of a minus, in digits. */
const MINUS = 0.6;

/** Return the width of a number before its decimal point, in digits. `words`: "0.8 s", for example. */
function wholeOf(words: string): number {
  const [, minus, digits] = /^(-?)(\d*)/.exec(words)!;
  return minus!.length * MINUS + digits!.length;
}

/** A table with a column for each trial or experiment, and a row for each property in which they differ. */
export function ComparedTable({ columns, rows, best, words, note, address }: ComparedTableProps) {
  const theme = useComputedColorScheme("light");
  const all = address.get("all") === "1";
  const [showsAll, setShowsAll] = useAtOnce(all, (on) => address.set({ all: on ? "1" : null }));
  const shown = all ? rows : rows.filter((row) => !row.same);
  const groups = [...new Set(shown.map((row) => row.group))].map((group) => {
    const own = shown.filter((row) => row.group === group);
    const wholes = own.flatMap((row) =>
      row.values.map((value) => (typeof value === "number" ? wholeOf(words(row, value)) : 0)),
    );
    return { group, rows: own, room: Math.min(Math.max(...wholes), MOST_WHOLE) };
  });
  /** The content of a cell. The decimal points of a group are aligned; a number stays one piece of text, for screen readers. */
  const content = (row: ComparedRow, value: unknown, isBest: boolean, room: number) => {
    const text = words(row, value);
    const shown = isBest ? (
      <b className={classes.best} title="the best of them">
        {text} <small>best</small>
      </b>
    ) : (
      text
    );
    if (typeof value !== "number") return shown;
    return <span style={{ paddingLeft: `${Math.max(room - wholeOf(text), 0)}ch` }}>{shown}</span>;
  };
  return (
    <Panel
      flush
      title={all ? "Everything" : "Differences"}
      aside={
        <Switch
          size="xs"
          label="show equal values too"
          checked={showsAll}
          onChange={(event) => setShowsAll(event.currentTarget.checked)}
        />
      }
    >
      <div className={`${classes.scroll} sideways`} tabIndex={0} role="region" aria-label="Comparison">
        <table className={classes.table} aria-label="Comparison">
          <thead>
            <tr>
              <th scope="col">
                <span className={classes.hidden}>Property</span>
              </th>
              {columns.map((column, i) => (
                <th scope="col" key={column.id}>
                  <i style={{ background: identityColour(i, theme) }} aria-hidden />{" "}
                  <Anchor component={Link} to={column.to} size="sm">
                    {column.name}
                  </Anchor>{" "}
                  <button type="button" aria-label={`Leave ${column.name} out`} onClick={column.onRemove}>
                    ×
                  </button>
                  <div>
                    <StateBadge state={column.state} />
                  </div>
                </th>
              ))}
            </tr>
          </thead>
          {groups.map(({ group, rows: own, room }) => (
            <tbody key={group}>
              <tr>
                <th scope="colgroup" colSpan={columns.length + 1} data-group>
                  {group}
                </th>
              </tr>
              {own.map((row) => (
                <tr key={row.name}>
                  <th scope="row">
                    <Breakable name={row.name} words />
                    {row.note && <span className={classes.note}>{row.note}</span>}
                  </th>
                  {row.values.map((value, i) => (
                    <td
                      key={columns[i]!.id}
                      data-bad={row.group === "Results" && columns[i]!.state === "failed" ? true : undefined}
                    >
                      <div ref={reachable}>{content(row, value, best.get(row)?.includes(i) ?? false, room)}</div>
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          ))}
        </table>
      </div>
      {note && <p className={classes.none}>{note}</p>}
      {shown.length === 0 && <p className={classes.none}>They have the same parameters, results and settings.</p>}
    </Panel>
  );
}
