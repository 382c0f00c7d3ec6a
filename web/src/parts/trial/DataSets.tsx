import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import type { DataSet, Experiment, TrialWithSegments } from "../../api/types";
import { duration } from "../../format";
import { Heading } from "../common/Heading";
import classes from "./TrialDetails.module.css";

const REFRESH_MS = 5000; // Ray Data updates the states as often
const LOOK_MS = 10_000; // a trial may read its first data set at any time

/** Show what a running trial reads through Ray Data. Show nothing for the many trials that do not use it. */
export function DataSets({ trial, source }: { trial: TrialWithSegments; source: Experiment["source"] }) {
  const running = trial.state === "running";
  // Only the service's driver can answer. Experiments of scripts run without it, and the trials of a study have no ranks.
  const apart = source === "python" || source === "study";
  const query = useQuery({
    queryKey: ["trial", trial.id, "live"],
    queryFn: ({ signal }) => api.live(trial.id, signal),
    enabled: running && !apart,
    retry: false, // it is asked again below
    // Here, a 503 means that no driver is running, not that the service is down.
    meta: { needsDriver: true },
    refetchInterval: ({ state }) => (state.data?.data_sets.length ? REFRESH_MS : LOOK_MS),
  });
  const sets = running ? (query.data?.data_sets ?? []) : [];
  if (running && source === "python")
    return (
      <p className={classes.dimmed}>
        What a trial reads through Ray Data is shown only if the service runs the experiment. This one was started by a
        script.
      </p>
    );
  return sets.map((set) => <One key={set.name} set={set} />);
}

function One({ set }: { set: DataSet }) {
  return (
    <section className={classes.dataSet} aria-label={`Data set ${set.name}`}>
      <Heading>Data set {set.name}</Heading>
      <p>{throughput(set)}</p>
      {set.operators.length > 0 && (
        <table className={classes.operators} aria-label={`Operators of data set ${set.name}`}>
          <thead>
            <tr>
              <th>Operator</th>
              <th>State</th>
              <th>Blocks</th>
              <th title="blocks that wait for this operator">Queued</th>
            </tr>
          </thead>
          <tbody>
            {set.operators.map((operator, index) => (
              <tr key={index}>
                <td>{operator.name}</td>
                <td>{operator.state}</td>
                <td>
                  {operator.blocks} of {operator.total_blocks ?? "?"}
                </td>
                <td>{operator.queued_blocks}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {set.stats && (
        <details>
          <summary>Ray Data statistics</summary>
          <pre className={classes.pre} tabIndex={0}>
            {set.stats}
          </pre>
        </details>
      )}
    </section>
  );
}

/** Say how quickly a data set is read. */
export function throughput(set: Pick<DataSet, "state" | "executions" | "seconds" | "rows_per_s" | "blocks_per_s">) {
  if (set.state === null || set.seconds === null) return "Not executed yet.";
  const rate =
    set.rows_per_s !== null
      ? `${Math.round(set.rows_per_s)} rows/s`
      : set.blocks_per_s !== null
        ? `${set.blocks_per_s.toPrecision(2)} blocks/s`
        : "no blocks yet";
  const epoch = set.executions > 1 ? `execution ${set.executions}, ` : "";
  const when = set.state === "running" ? "running for" : `${set.state} after`;
  return `${epoch}${when} ${duration(set.seconds)}: ${rate}`;
}
