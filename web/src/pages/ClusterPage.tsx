import { Anchor, Skeleton } from "@mantine/core";
import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { Link } from "react-router";
import { api, ApiError, isForbidden } from "../api/client";
import { serviceTime } from "../api/clock";
import type { Cluster, Experiment } from "../api/types";
import { ago, duration, elapsed, moment, number, plural } from "../format";
import { CLUSTER } from "../charts/copies";
import { keys } from "../live/keys";
import { Panel } from "../parts/common/Panel";
import { ProblemBox } from "../parts/common/Problem";
import { Sentence } from "../parts/common/Sentence";
import { CopyMenu } from "../parts/common/CopyMenu";
import { useNow } from "../parts/common/useNow";
import { useSession } from "../parts/common/useSession";
import { useTitle } from "../parts/common/useTitle";
import { inUse } from "./held";
import { askedWords } from "./room";
import classes from "./SettingsPage.module.css";

const REFRESH_MS = 3000;
const NAMES_MS = 10_000;
/** The sources of experiments whose trials a script runs. */
const SCRIPTS: ReadonlySet<string> = new Set(["python", "study"]);

type Group = Cluster["groups"][number];
type Wait = Cluster["waiting"][number];

/** Show the nodes, what runs on them, and what each waiting trial waits for. */
export default function ClusterPage() {
  useTitle("Cluster");
  const now = useNow(true);
  const query = useQuery({
    queryKey: ["cluster"],
    queryFn: ({ signal }) => api.cluster(signal),
    refetchInterval: ({ state }) => (isForbidden(state.error) ? false : REFRESH_MS),
    retry: false,
    // Here, a 503 means that no driver is running, not that the service is down.
    meta: { needsDriver: true },
  });
  const list = useQuery({
    queryKey: [...keys.experiments, "names"],
    queryFn: ({ signal }) => api.experiments({ page_size: 200 }, signal),
    refetchInterval: NAMES_MS,
  });
  const running = useQuery({
    queryKey: [...keys.experiments, "driven elsewhere"],
    queryFn: ({ signal }) => api.experiments({ state: "running", page_size: 200 }, signal),
    refetchInterval: REFRESH_MS,
  });
  const elsewhere = running.data?.items.filter(isElsewhere) ?? [];
  const known = [...(list.data?.items ?? []), ...(running.data?.items ?? [])];
  const names = new Map(known.map((one) => [one.id, one.name]));
  const nameOf = (id: string) => names.get(id) ?? id;
  const experiment = (id: string) => (
    <Anchor component={Link} to={`/experiments/${id}`} size="sm">
      {nameOf(id)}
    </Anchor>
  );
  const found = query.data;
  const silent = query.error instanceof ApiError && query.error.status === 503;
  const refused = isForbidden(query.error);
  if (refused) return <Limited running={running} />;
  return (
    <div className={classes.page}>
      <div className={classes.titleRow}>
        <h1 className={classes.title}>Cluster</h1>
        <CopyMenu call={CLUSTER} />
      </div>
      {silent && !found && (
        <Panel>
          <p className={classes.words}>
            The cluster is shown while a driver runs. The service says: <Sentence text={query.error?.message ?? ""} />.
          </p>
          <p className={classes.words}>
            <code>tuner doctor</code> finds what may keep a driver from starting.
          </p>
        </Panel>
      )}
      {silent && found && (
        <div role="alert">
          <Panel>
            <p className={classes.words}>
              No driver answers at the moment. What is shown here was read{" "}
              {ago(new Date(serviceTime(query.dataUpdatedAt)).toISOString(), now)}. The service says:{" "}
              <Sentence text={query.error?.message ?? ""} />.
            </p>
          </Panel>
        </div>
      )}
      {query.isError && !silent && !found && (
        <ProblemBox error={query.error} what="cluster" retry={() => void query.refetch()} />
      )}
      {query.isLoading && <Skeleton height={240} />}
      {found && (
        <>
          <p className={classes.summary} role="status">
            {summary(found)}
          </p>
          <Panel flush title={`Nodes · ${found.nodes.length}`}>
            <Table
              label="Nodes"
              heads={["Node", "What runs there", "CPUs in use", "GPUs in use", "Address"]}
              empty="No node is alive."
              long={1}
              rows={found.nodes.map((node) => [
                node.name,
                <Residents key="groups" groups={found.groups} node={node.id} nameOf={nameOf} />,
                <Use key="cpu" used={node.cpus_in_use} of={node.cpus} what={`CPUs of ${node.name}`} />,
                <Use key="gpu" used={node.gpus_in_use} of={node.gpus} what={`GPUs of ${node.name}`} />,
                node.address,
              ])}
            />
            {found.may_join.length > 0 && <p className={classes.none}>{joinWords(found.may_join)}</p>}
          </Panel>
          {found.agents.length > 0 && (
            <Panel flush title={`Agents · ${found.agents.length}`}>
              <p className={classes.none}>
                Agents are programs on other machines. They get trials over HTTP, and hold none of the CPUs and GPUs
                above.
              </p>
              <Table
                label="Agents"
                heads={["Agent", "Experiment", "Running trials", "Asks for"]}
                empty=""
                rows={found.agents.map((one) => [
                  one.name,
                  experiment(one.experiment_id),
                  one.running,
                  one.asking === 0 ? "–" : one.asking === 1 ? "a trial" : `${one.asking} trials`,
                ])}
              />
            </Panel>
          )}
          <Panel flush title={`Starting or waiting · ${found.waiting.length}`}>
            <Table
              label="Waiting"
              heads={["", "Experiment", "Trial", "Why it waits", "Asks for", "Waited", "Priority"]}
              empty="No trial of this service is starting or waiting."
              long={3}
              rows={found.waiting.map((one) => [
                one.position,
                experiment(one.experiment_id),
                <Trial key="trial" of={one} />,
                <span key="why">
                  <Sentence text={one.reason} />
                  {one.reserved && (
                    <span
                      className={classes.kept}
                      title="It has waited so long that free resources on its nodes are reserved for it"
                    >
                      room is reserved for it
                    </span>
                  )}
                </span>,
                askedWords(one.workers, one.resources),
                <span key="since" title={`since ${moment(one.since)}`}>
                  {duration(elapsed(one.since, null, now))}
                </span>,
                one.priority,
              ])}
            />
          </Panel>
          <Panel flush title={`Running · ${found.groups.length}`}>
            <Table
              label="Running"
              heads={["Experiment", "Trial", "Holds", "Nodes", "GPUs", "Since"]}
              empty="No trial of this service is running."
              rows={found.groups.map((one) => [
                experiment(one.experiment_id),
                <Trial key="trial" of={one} />,
                askedWords(one.ranks.length, one.resources),
                [...new Set(one.ranks.map((rank) => rank.host))].join(", "),
                one.ranks.flatMap((rank) => rank.gpus).join(", ") || "–",
                <span key="since" title={moment(one.since)}>
                  {ago(one.since, now)}
                </span>,
              ])}
            />
          </Panel>
          <Panel flush title="Shares of the cluster">
            <Table
              label="Shares"
              heads={["Experiment", "Priority", "Weight", "Share in use", "Running", "Starting or waiting"]}
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
      {(found ?? silent) && elsewhere.length > 0 && <Elsewhere experiments={elsewhere} />}
    </div>
  );
}

/** The page for somebody whose access is limited to a project: the service shows them their experiments, but not the cluster. */
function Limited({ running }: { running: UseQueryResult<{ items: Experiment[] }> }) {
  const experiments = running.data?.items;
  const project = useSession()?.project;
  const of = project ? `the project ${project}` : "your project";
  return (
    <div className={classes.page}>
      <h1 className={classes.title}>Cluster</h1>
      <Panel>
        <p className={classes.words}>
          Your access is limited to {of}, and the cluster also runs the trials of other projects, so its nodes are not
          shown to you. The page of an experiment says why its trials wait.
        </p>
      </Panel>
      {running.isError && !experiments && (
        <ProblemBox error={running.error} what="experiments" retry={() => void running.refetch()} />
      )}
      {running.isLoading && <Skeleton height={120} />}
      {experiments && (
        <Panel flush title={`Running in ${of} · ${experiments.length}`}>
          <Table
            label="Running"
            heads={["Experiment", "Running trials", "In use", "Waiting trials"]}
            empty="No experiment is running."
            rows={experiments.map((one) => [
              <Anchor key="name" component={Link} to={`/experiments/${one.id}`} size="sm">
                {one.name}
              </Anchor>,
              one.counts.running,
              inUse(one) || "nothing",
              one.counts.pending,
            ])}
          />
        </Panel>
      )}
    </div>
  );
}

/** Whether a script drives this running experiment, so that the service's driver does not know its trials. */
export function isElsewhere({ source, abandoned }: Pick<Experiment, "source" | "abandoned">): boolean {
  return SCRIPTS.has(source) && !abandoned;
}

/** The running experiments that scripts drive. */
function Elsewhere({ experiments }: { experiments: readonly Experiment[] }) {
  return (
    <Panel flush title={`Driven by scripts · ${experiments.length}`}>
      <p className={classes.none}>
        Scripts drive these experiments, not this service. Their trials run in processes on the script’s machine, or on
        Ray. The lists above do not have these trials. Their CPUs and GPUs are counted above only if they run on the
        same Ray cluster, as used by something other than trials.
      </p>
      <Table
        label="Driven by scripts"
        heads={["Experiment", "Running trials", "In use"]}
        empty=""
        rows={experiments.map((one) => [
          <Anchor key="name" component={Link} to={`/experiments/${one.id}`} size="sm">
            {one.name}
          </Anchor>,
          one.counts.running,
          inUse(one) || "nothing",
        ])}
      />
    </Panel>
  );
}

/** "3 of 4 GPUs and 6 of 8 CPUs are in use on 2 nodes. 2 trials run, 1 starts, none waits." */
export function summary({ nodes, cpus, cpus_in_use, gpus, gpus_in_use, groups, waiting }: Cluster): string {
  const use = [
    ...(gpus > 0 ? [`${number(gpus_in_use)} of ${plural(number(gpus), "GPU")}`] : []),
    `${number(cpus_in_use)} of ${plural(number(cpus), "CPU")}`,
  ].join(" and ");
  const starting = waiting.filter((one) => one.nodes.length > 0);
  const held = nodes.reduce((sum, node) => sum + node.cpus_in_use, 0);
  const starts = starting.reduce((sum, one) => sum + one.nodes.length * (one.resources["CPU"] ?? 0), 0);
  const parts = [
    [held - starts, "by running trials"],
    [starts, "by starting trials"],
    [cpus_in_use - held, "by something other than trials"],
  ] as const;
  const whose = parts
    .filter(([amount]) => amount > 1e-6)
    .map(([amount, by]) => `${number(Number(amount.toFixed(3)))} ${by}`);
  const split = starts > 1e-6 || cpus_in_use - held > 1e-6 ? ` (CPUs: ${whose.join(", ")})` : "";
  const count = (many: number, one: string, more: string) => `${many || "no"} ${many === 1 ? one : more}`;
  const runs = count(groups.length, "trial runs", "trials run");
  const waits = waiting.length - starting.length;
  const states = [
    runs[0]!.toUpperCase() + runs.slice(1),
    ...(starting.length > 0 ? [count(starting.length, "starts", "start")] : []),
    waits > 0 ? count(waits, "waits", "wait") : "no trial waits",
  ].join(", ");
  const idle = groups.length + waiting.length === 0;
  return `${use} are in use on ${nodes.length} ${nodes.length === 1 ? "node" : "nodes"}${split}. ${idle ? "No trial of this service is running or waiting" : states}.`;
}

/** "Up to 3 more nodes with 16 CPUs and 4 GPUs each, and up to 1 with 64 CPUs may join." */
export function joinWords(joining: Cluster["may_join"]): string {
  const each = joining.map(({ count, cpus, gpus }, i) => {
    const some = (amount: number, what: string) => plural(number(amount), what);
    const holds = [...(cpus > 0 || gpus === 0 ? [some(cpus, "CPU")] : []), ...(gpus > 0 ? [some(gpus, "GPU")] : [])];
    const nodes = i > 0 ? "" : count === 1 ? " more node" : " more nodes";
    return `up to ${count.toLocaleString("en")}${nodes} with ${holds.join(" and ")}${count === 1 ? "" : " each"}`;
  });
  const words = each.length > 1 ? `${each.slice(0, -1).join(", ")}, and ${each[each.length - 1]}` : (each[0] ?? "");
  return `${words[0]?.toUpperCase()}${words.slice(1)} may join.`;
}

function Trial({ of }: { of: Pick<Group | Wait, "trial_id" | "trial_number"> }) {
  return (
    <Anchor component={Link} to={`/trials/${of.trial_id}`} size="sm" title={of.trial_id}>
      {of.trial_number === null ? of.trial_id : `trial ${of.trial_number}`}
    </Anchor>
  );
}

/** The trials with ranks on a node, by experiment. */
function Residents({
  groups,
  node,
  nameOf,
}: {
  groups: readonly Group[];
  node: string;
  nameOf: (experiment: string) => string;
}) {
  const here = groups.flatMap((group) => {
    const ranks = group.ranks.filter((rank) => rank.node === node);
    return ranks.length > 0 ? [{ group, ranks }] : [];
  });
  if (here.length === 0) return <>nothing</>;
  return (
    <ul className={classes.residents}>
      {here.map(({ group, ranks }) => (
        <li key={group.segment_id}>
          {nameOf(group.experiment_id)} <Trial of={group} />, {ranks.length === 1 ? "rank" : "ranks"}{" "}
          {ranks.map((rank) => rank.rank + (rank.gpus.length > 0 ? ` (GPU ${rank.gpus.join(", ")})` : "")).join(", ")}
        </li>
      ))}
    </ul>
  );
}

function Use({ used, of, what }: { used: number; of: number; what: string }) {
  if (of === 0) return <>none</>;
  return (
    <span className={classes.use}>
      <meter min={0} max={of} value={used} aria-label={`${what} in use`} /> {number(used)} of {number(of)}
    </span>
  );
}

interface TableProps {
  label: string;
  heads: readonly string[];
  rows: readonly (readonly React.ReactNode[])[];
  empty: string;
  /** The column whose text is long and may wrap. */
  long?: number;
}

function Table({ label, heads, rows, empty, long }: TableProps) {
  if (rows.length === 0) return <p className={classes.none}>{empty}</p>;
  const isNumber = (column: number) => column > 0 && rows.every((row) => typeof row[column] === "number");
  return (
    <div className={`${classes.scroll} sideways`} tabIndex={0} role="region" aria-label={label}>
      <table className={classes.table} aria-label={label}>
        <thead>
          <tr>
            {heads.map((head, k) => (
              <th key={head} scope="col" data-number={isNumber(k)}>
                {head || <span className={classes.hidden}>Place</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, k) => (
                <td key={k} className={k === long ? classes.wide : undefined} data-number={isNumber(k)}>
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
