import { Alert, Anchor } from "@mantine/core";
import type { Experiment, Trial } from "../../api/types";
import { sentence } from "../../format";
import classes from "../common/parts.module.css";

interface FailureNoticeProps {
  experiment: Pick<Experiment, "state" | "error" | "reason" | "counts" | "trials">;
  /** The first of them that failed. */
  first: Trial | undefined;
  /** All that failed; undefined if they are too many to know them all. */
  failures?: readonly Trial[] | undefined;
  onSelect: (number: number) => void;
  onShowFailed: () => void;
}

/** Say what went wrong: an alert if the whole experiment has failed, a line with links if some of its trials have. */
export function FailureNotice({ experiment, first, failures, onSelect, onShowFailed }: FailureNoticeProps) {
  const failed = experiment.counts.failed;
  const causes = failures?.length === failed ? causesOf(failures) : null;
  const only = failed === 1 || causes?.length === 1;
  const links = (
    <>
      {first && (
        <Anchor component="button" type="button" size="sm" onClick={() => onSelect(first.number)}>
          Show trial {first.number}
        </Anchor>
      )}
      {failed > 1 && (
        <Anchor component="button" type="button" size="sm" onClick={onShowFailed}>
          Show all {failed} failed trials
        </Anchor>
      )}
    </>
  );
  if (experiment.state === "failed") {
    return (
      <Alert className={classes.wholeRow} color="red" variant="light" role="alert" title="The experiment failed">
        <p className={classes.noticeText}>
          {sentence(experiment.error || experiment.reason || "No reason was recorded.")}
        </p>
        <span className={classes.noticeLinks}>{links}</span>
      </Alert>
    );
  }
  if (failed === 0 && !experiment.error && !experiment.reason) return null;
  return (
    <div className={classes.notice}>
      {experiment.reason && <span>{sentence(experiment.reason)}</span>}
      {failed > 0 && (
        <span data-tone="bad">
          <b>
            {failed} of {experiment.trials} {experiment.trials === 1 ? "trial" : "trials"} failed
            {!first ? "" : only || causes ? ":" : "; the first one:"}
          </b>{" "}
          {first && (
            <span className={classes.firstLine}>{causes && !only ? causesWords(causes) : firstLine(first)}</span>
          )}{" "}
          <span className={classes.noticeLinks}>{links}</span>
        </span>
      )}
      {failed === 0 && experiment.error && <span data-tone="bad">{experiment.error}</span>}
    </div>
  );
}

/** The maximum number of different errors to show. The others are only counted. */
const MOST_CAUSES = 3;

/** The first lines of the errors, each with the number of its trials, the most frequent first. */
function causesOf(failures: readonly Trial[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const trial of failures) {
    const line = firstLine(trial);
    counts.set(line, (counts.get(line) ?? 0) + 1);
  }
  return [...counts].sort(([, a], [, b]) => b - a);
}

/** "3 × ValueError: loss is NaN; 2 × MemoryError; 1 × KeyError: 'lr'; 4 with other errors" */
function causesWords(causes: readonly [string, number][]): string {
  const others = causes.slice(MOST_CAUSES).reduce((sum, [, count]) => sum + count, 0);
  return [
    ...causes.slice(0, MOST_CAUSES).map(([line, count]) => `${count} × ${line}`),
    ...(others > 0 ? [others === 1 ? "1 with another error" : `${others} with other errors`] : []),
  ].join("; ");
}

function firstLine(trial: Trial): string {
  const text = trial.error?.message || trial.reason;
  const line = text.split("\n")[0]!;
  return line.length > 160 ? `${line.slice(0, 160)}…` : line;
}
