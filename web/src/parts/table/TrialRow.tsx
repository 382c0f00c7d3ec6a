import { Anchor } from "@mantine/core";
import { Fragment, memo } from "react";
import { ROOT } from "../../api/root";
import type { Trial } from "../../api/types";
import { shortened } from "../../charts/dimensions";
import type { Expected } from "../../curves/expected";
import { config, duration, metricInColumn, number, param, paramName, reachedAt } from "../../format";
import { Sentence } from "../common/Sentence";
import { StateBadge } from "../common/StateBadge";
import { gapStyle, placeStyle, type Drawn } from "./places";
import { BRIEF, EXPECTED, FRONT, isParam, rounded, type Column } from "./trialColumns";
import classes from "./TrialTable.module.css";

/** A value with more letters than this may be cut at the edge of its column, so it gets a tooltip. */
const MOST_IN_CELL = 30;
/** A value with more letters than this may be cut in a column as wide as a pinned one. */
const MOST_IN_NARROW = 16;
/** The maximum number of letters of a parameter's name on a phone, so that the value after it is visible. */
const MOST_LETTERS = 19;
/** The maximum number of parameters in the column with the whole configuration, which shows only its first lines. */
const MOST_IN_BRIEF = 24;

interface TrialRowProps {
  trial: Trial;
  drawn: readonly Drawn[];
  index: number;
  /** The height of the row in pixels. */
  height: number;
  selected: boolean;
  /** The color of the trial, if it is picked; else null. */
  picked: string | null;
  /** True if no more trials can be picked. */
  full: boolean;
  colour: string | null;
  /** After repeats: the runs of its configuration in words. */
  runs: string | null;
  /** True if the column of fronts shows the colors. */
  byFront: boolean;
  onSelect: (number: number) => void;
  onPoint: (number: number | null) => void;
  onPick: (number: number) => void;
}

export const TrialRow = memo(function TrialRow(props: TrialRowProps) {
  const { trial, drawn, index, height, selected, picked, full, colour, runs, byFront, onSelect, onPoint, onPick } =
    props;
  const gaps = drawn.some((place) => "gap" in place);
  return (
    <tr
      aria-rowindex={index + 2}
      aria-selected={selected}
      style={{ height }}
      onMouseEnter={() => onPoint(trial.number)}
      onClick={(event) => !(event.target as Element).closest("a, input") && onSelect(trial.number)}
    >
      {drawn.map((place, i) => {
        if ("gap" in place) return <td key={i} aria-hidden style={gapStyle(place.gap)} />;
        const { column, pinned, narrow } = place;
        return (
          <td
            key={column.id}
            data-numeric={column.numeric}
            data-pinned={pinned !== null}
            data-column={isParam(column) ? "param" : column.id}
            data-narrow={narrow || undefined}
            aria-colindex={gaps ? place.index + 1 : undefined}
            style={placeStyle(place)}
            title={longText(trial, column, narrow)}
          >
            {column.id === "number" && (
              <input
                type="checkbox"
                aria-label={`Pick trial ${trial.number}`}
                title={
                  full && !picked
                    ? "Pick it; the first picked trial is unpicked"
                    : "Pick it, to highlight and compare it"
                }
                checked={picked !== null}
                onChange={() => onPick(trial.number)}
                style={picked ? { accentColor: picked } : undefined}
              />
            )}
            <Cell trial={trial} column={column} colour={colour} runs={runs} byFront={byFront} onSelect={onSelect} />
          </td>
        );
      })}
    </tr>
  );
});

/** Return the text of a parameter that may be wider than its column. */
function longText(trial: Trial, column: Column, narrow: boolean): string | undefined {
  if (!isParam(column)) return undefined;
  const text = param(column.value(trial));
  return text.length > (narrow ? MOST_IN_NARROW : MOST_IN_CELL) ? text : undefined;
}

/** "mean 0.098 of trials 14, 31, 33" */
export function runsWords(runs: ReturnType<Expected["runs"]>): string {
  return runs ? `mean ${number(runs.mean)} of trials ${runs.trials.join(", ")}` : "a single run";
}

function reasonOf(trial: Trial): string {
  if (trial.state === "failed") return trial.error?.message ?? trial.reason;
  return trial.waiting ?? trial.reason;
}

/** Show the reason of a trial. Only why it waits has code between backticks; the other reasons may quote users' texts. */
function Reason({ trial }: { trial: Trial }) {
  const text = reasonOf(trial);
  return text === trial.waiting ? <Sentence text={text} /> : text;
}

interface CellProps {
  trial: Trial;
  column: Column;
  colour: string | null;
  runs: string | null;
  /** True if the column of fronts shows the colors. */
  byFront: boolean;
  onSelect: (number: number) => void;
}

function Cell({ trial, column, colour, runs, byFront, onSelect }: CellProps) {
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
    case EXPECTED:
      return (
        <span title={runs ?? undefined}>
          <i className={classes.swatch} style={{ background: colour ?? "transparent" }} aria-hidden />
          {metricInColumn(rounded(column.value(trial) as number | null), column.decimals ?? 0)}
        </span>
      );
    case "best":
      return (
        <>
          {runs === null && !byFront && (
            <i className={classes.swatch} style={{ background: colour ?? "transparent" }} aria-hidden />
          )}
          <span title={trial.best_value === null ? undefined : `${column.label}${reachedAt(trial)}`}>
            {metricInColumn(trial.best_value, column.decimals ?? 0)}
          </span>
        </>
      );
    case FRONT: {
      const front = column.value(trial) as number | null;
      return (
        front !== null && (
          <span title={front === 1 ? "on the Pareto front" : undefined}>
            <i className={classes.swatch} style={{ background: colour ?? "transparent" }} aria-hidden />
            <span className={classes.front} data-first={front === 1}>
              {front}
            </span>
          </span>
        )
      );
    }
    case "feasible":
      return param(column.value(trial) ?? "–");
    case "last":
      return metricInColumn(trial.last_value, column.decimals ?? 0);
    case "best_iteration":
      return trial.best_iteration ?? "–";
    case "iteration":
      return trial.iteration;
    case "running_s":
      return trial.iteration > 0 || trial.running_s > 0 ? duration(trial.running_s) : "–";
    case "reason":
      return (
        <span title={reasonOf(trial)}>
          <Reason trial={trial} />
        </span>
      );
    case BRIEF:
      return (
        <>
          <span>
            {Object.entries(trial.params)
              .slice(0, MOST_IN_BRIEF)
              .map(([name, value]) => (
                // A space between them, at which lines break; not after the minus of an exponent.
                <Fragment key={name}>
                  <b title={config({ [name]: value }, column.labels)}>
                    {shortened(paramName(name, column.labels), MOST_LETTERS)}={param(value)}
                  </b>{" "}
                </Fragment>
              ))}
          </span>
          <span data-dimmed>
            <Reason trial={trial} />
          </span>
        </>
      );
    default:
      return column.id.startsWith("metric:")
        ? metricInColumn(column.value(trial) as number | null | undefined, column.decimals ?? 0)
        : param(column.value(trial));
  }
}
