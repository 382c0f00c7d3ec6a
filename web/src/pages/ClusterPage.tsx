import { Anchor, Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { api, ApiError } from "../api/client";
import { ago, moment } from "../format";
import { keys } from "../live/keys";
import { Panel } from "../parts/Panel";
import { ProblemBox } from "../parts/Problem";
import { useNow } from "../parts/useNow";
import { useTitle } from "../parts/useTitle";
import classes from "./SettingsPage.module.css";

const REFRESH_MS = 3000;

/** The nodes, what runs on them, and what waits for what. */
export default function ClusterPage() {
  useTitle("Cluster");
  const now = useNow(true);
  const query = useQuery({
    queryKey: ["cluster"],
    queryFn: ({ signal }) => api.cluster(signal),
    refetchInterval: REFRESH_MS,
    retry: false,
    // A 503 means here that no driver runs, not that the service is away.
    meta: { needsDriver: true },
  });
  const list = useQuery({
    queryKey: [...keys.experiments, "names"],
    queryFn: ({ signal }) => api.experiments({ page_size: 200 }, signal),
    staleTime: 10_000,
  });
  const names = new Map(list.data?.items.map((one) => [one.id, one.name]));
  const experiment = (id: string) => (
    <Anchor component={Link} to={`/experiments/${id}`} size="sm">
      {names.get(id) ?? id}
    </Anchor>
  );
  const found = query.data;
  const silent = query.error instanceof ApiError && query.error.status === 503;
  return (
    <div className={classes.page}>
      <h1 className={classes.title}>Cluster</h1>
      {silent && !found && (
        <Panel>
          <p className={classes.words}>
            {query.error?.message} The cluster is shown while a driver runs. It starts with the first experiment that
            this service drives; <code>tuner doctor</code> finds what may keep it from starting.
          </p>
        </Panel>
      )}
      {query.isError && !silent && !found && (
        <ProblemBox error={query.error} what="cluster" retry={() => void query.refetch()} />
      )}
      {query.isLoading && <Skeleton height={240} />}
      {found && (
        <>
          <Panel flush title={`Nodes · ${found.nodes.length}`}>
            <Table
              label="Nodes"
              heads={["Node", "Address", "CPUs in use", "GPUs in use"]}
              empty="No node is alive."
              rows={found.nodes.map((node) => [
                node.name,
                node.address,
                <Use key="cpu" used={node.cpus_in_use} of={node.cpus} what={`CPUs of ${node.name}`} />,
                <Use key="gpu" used={node.gpus_in_use} of={node.gpus} what={`GPUs of ${node.name}`} />,
              ])}
            />
          </Panel>
          <Panel flush title={`Waiting · ${found.waiting.length}`}>
            <Table
              label="Waiting"
              heads={["", "Experiment", "Trial", "Workers", "Priority", "Since", "Waits for"]}
              empty="No trial is waiting."
              rows={found.waiting.map((one) => [
                one.position,
                experiment(one.experiment_id),
                <Trial key="trial" id={one.trial_id} />,
                one.workers,
                one.priority,
                <span key="since" title={moment(one.since)}>
                  {ago(one.since, now)}
                </span>,
                one.reserved ? `${one.reason} (free resources on its nodes are reserved for it)` : one.reason,
              ])}
            />
          </Panel>
          <Panel flush title={`Running · ${found.groups.length}`}>
            <Table
              label="Running"
              heads={["Experiment", "Trial", "Workers", "Nodes", "GPUs", "Since"]}
              empty="No trial is running."
              rows={found.groups.map((one) => [
                experiment(one.experiment_id),
                <Trial key="trial" id={one.trial_id} />,
                one.ranks.length,
                [...new Set(one.ranks.map((rank) => rank.host))].join(", "),
                one.ranks.flatMap((rank) => rank.gpus).join(", ") || "–",
                <span key="since" title={moment(one.since)}>
                  {ago(one.since, now)}
                </span>,
              ])}
            />
          </Panel>
          <Panel flush title="Shares">
            <Table
              label="Shares"
              heads={["Experiment", "Priority", "Weight", "Share held", "Running", "Waiting"]}
              empty="This service is not driving any experiment."
              rows={found.experiments.map((one) => [
                experiment(one.experiment_id),
                one.priority,
                one.weight,
                `${Math.round(100 * one.share)} %`,
                one.groups,
                one.waiting,
              ])}
            />
          </Panel>
        </>
      )}
    </div>
  );
}

function Trial({ id }: { id: string }) {
  return (
    <Anchor component={Link} to={`/trials/${id}`} size="sm">
      {id}
    </Anchor>
  );
}

function Use({ used, of, what }: { used: number; of: number; what: string }) {
  if (of === 0) return <>none</>;
  return (
    <span className={classes.use}>
      <meter min={0} max={of} value={used} aria-label={`${what} in use`} /> {used} of {of}
    </span>
  );
}

interface TableProps {
  label: string;
  heads: readonly string[];
  rows: readonly (readonly React.ReactNode[])[];
  empty: string;
}

function Table({ label, heads, rows, empty }: TableProps) {
  if (rows.length === 0) return <p className={classes.none}>{empty}</p>;
  return (
    <div className={classes.scroll} tabIndex={0} role="region" aria-label={label}>
      <table className={classes.table}>
        <thead>
          <tr>
            {heads.map((head) => (
              <th key={head} scope="col">
                {head || <span className={classes.hidden}>Place</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, k) => (
                <td key={k}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
