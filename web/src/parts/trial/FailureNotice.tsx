import { Alert, Anchor } from "@mantine/core";
import type { Experiment, Trial } from "../../api/types";
import { sentence } from "../../format";
import classes from "../common/parts.module.css";

interface FailureNoticeProps {
  experiment: Pick<Experiment, "state" | "error" | "reason" | "counts" | "trials">;
  /** The first of them that failed. */
  first: Trial | undefined;
  onSelect: (number: number) => void;
  onShowFailed: () => void;
}

/** Say what went wrong: an alert if the whole experiment has failed, a line with links if some of its trials have. */
export function FailureNotice({ experiment, first, onSelect, onShowFailed }: FailureNoticeProps) {
  const failed = experiment.counts.failed;
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
            {failed} of {experiment.trials} {experiment.trials === 1 ? "trial" : "trials"} failed{first ? ":" : ""}
          </b>{" "}
          {first && <span className={classes.firstLine}>{firstLine(first)}</span>}{" "}
          <span className={classes.noticeLinks}>{links}</span>
        </span>
      )}
      {failed === 0 && experiment.error && <span data-tone="bad">{experiment.error}</span>}
    </div>
  );
}

function firstLine(trial: Trial): string {
  const text = trial.error?.message || trial.reason;
  const line = text.split("\n")[0]!;
  return line.length > 160 ? `${line.slice(0, 160)}…` : line;
}
