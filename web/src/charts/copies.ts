/** The API call for the data of a view, as Python and as curl, for users to copy. */

import { NEIGHBORS } from "../api/sizes";
import type { Across } from "../curves/across";

/** The call that returns the numbers of a view. */
export interface Call {
  /** The name of the result. */
  name: string;
  /** A Python expression in terms of `client`. */
  python: string;
  /** Paths below /api/v1, with their parameters. A request with a body is a POST. */
  reads: readonly { path: string; query: Query; body?: unknown }[];
}

/** Parameters by name; those that are null keep their default. */
type Query = Readonly<Record<string, string | readonly string[] | null>>;

const given = (query: Query) =>
  Object.entries(query).filter((one): one is [string, string | readonly string[]] => one[1] !== null);

const args = (query: Query) =>
  given(query)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(", ");

/** A parameter that is a whole number, which has no quotes in Python. */
const numbered = (name: string, value: string | null) => (value === null ? [] : [`${name}=${value}`]);

const joined = (...parts: readonly (string | readonly string[])[]) => parts.flat().filter(Boolean).join(", ");

const orNull = <T extends { length: number }>(value: T): T | null => (value.length > 0 ? value : null);

const experimentOf = (id: string) => `client.experiment(${JSON.stringify(id)})`;
const trialOf = (id: string) => `client.trial(${JSON.stringify(id)})`;

/** The parameters of an axis. */
const over = ({ x, x_metric }: Across) => ({ x: x === "step" ? null : x, x_metric });

export function curvesCall(experiment: string, metric: string, across: Across): Call {
  const query = { metric, ...over(across) };
  const python = `${experimentOf(experiment)}.curves(${args(query)})`;
  return { name: "curves", python, reads: [{ path: `experiments/${experiment}/curves`, query }] };
}

/** `where`: conditions of the service, such as "state=completed". `sort`: a column, with "-" before it for descending order. */
export function trialsCall(experiment: string, where: readonly string[] = [], sort: string | null = null): Call {
  const query = { where: orNull(where), sort };
  const python = `list(${experimentOf(experiment)}.trials(${args(query)}))`;
  return { name: "trials", python, reads: [{ path: `experiments/${experiment}/trials`, query }] };
}

/** `first`: the number of the first trial. */
export function timelineCall(experiment: string, first: number): Call {
  const query = { first: first === 0 ? null : String(first) };
  const python = `${experimentOf(experiment)}.timeline(${joined(numbered("first", query.first))})`;
  return { name: "timeline", python, reads: [{ path: `experiments/${experiment}/timeline`, query }] };
}

/** All curves of some trials, which may belong to several experiments. */
export function trialCurvesCall(trials: readonly string[], across: Across): Call {
  const query = over(across);
  const python = `[client.trial(trial).curves(${args(query)}) for trial in ${JSON.stringify(trials)}]`;
  return { name: "curves", python, reads: trials.map((trial) => ({ path: `trials/${trial}/curves`, query })) };
}

/** The best values so far of some experiments. `x`: "time", or "trial_time" for the training of all trials. */
export function bestCall(experiments: readonly string[], metric: string, x: "time" | "trial_time"): Call {
  const query = { metric, x: x === "time" ? null : x };
  const python = `[client.experiment(one).best_so_far(${args(query)}) for one in ${JSON.stringify(experiments)}]`;
  return { name: "best", python, reads: experiments.map((id) => ({ path: `experiments/${id}/best-so-far`, query })) };
}

export function hypervolumeCall(experiment: string): Call {
  const python = `${experimentOf(experiment)}.hypervolume()`;
  return { name: "growth", python, reads: [{ path: `experiments/${experiment}/hypervolume`, query: {} }] };
}

/** `metric`: the objective; null for the first one. */
export function importanceCall(experiment: string, where: readonly string[], metric: string | null = null): Call {
  const query = { metric, where: orNull(where) };
  const python = `${experimentOf(experiment)}.importance(${args(query)})`;
  return { name: "importance", python, reads: [{ path: `experiments/${experiment}/importance`, query }] };
}

export function decisionsCall(
  experiment: string,
  { kind, text, trial }: { kind: readonly string[]; text: string; trial: number | undefined },
): Call {
  const query = { kind: orNull(kind), text: orNull(text), trial: trial === undefined ? null : String(trial) };
  const rest = args({ kind: query.kind, text: query.text });
  const python = `list(${experimentOf(experiment)}.decisions(${joined(numbered("trial", query.trial), rest)}))`;
  return { name: "decisions", python, reads: [{ path: `experiments/${experiment}/decisions`, query }] };
}

export function logCall(
  experiment: string,
  { kind, trial }: { kind: readonly string[]; trial: number | undefined },
): Call {
  const query = { kind: orNull(kind), trial: trial === undefined ? null : String(trial) };
  const found = joined(numbered("trial", query.trial), args({ kind: query.kind }));
  const python = `list(${experimentOf(experiment)}.log(${found}))`;
  return { name: "entries", python, reads: [{ path: `experiments/${experiment}/log`, query }] };
}

export function experimentCall(experiment: string): Call {
  const python = `${experimentOf(experiment)}.get()`;
  return { name: "experiment", python, reads: [{ path: `experiments/${experiment}`, query: {} }] };
}

export function experimentsCall(filters: {
  state: string;
  name: string;
  tag: string;
  project: string;
  archived: boolean;
  sort: string;
}): Call {
  const { state, name, tag, project, archived, sort } = filters;
  const shared = { state: orNull(state), name: orNull(name), project: orNull(project), sort: orNull(sort) };
  const hidden = archived ? "yes" : null;
  const python = `list(client.experiments(${args({ ...shared, tags: orNull(tag), archived: hidden })}))`;
  const query = { ...shared, tag: orNull(tag), archived: hidden };
  return { name: "experiments", python, reads: [{ path: "experiments", query }] };
}

/** What the tabs of a trial show: which logs, and "best" for the lineage of the weights with the best value. */
interface Chosen {
  segment: string | null;
  rank: string | null;
  search: string | null;
  weights?: string | null;
}

/** The call for what a tab of a trial shows. */
export function trialCall(
  trial: { id: string; experiment_id: string; number: number },
  view: string,
  { segment, rank, search, weights }: Chosen,
): Call {
  const { id } = trial;
  const one = (name: string, query: Query = {}, found = args(query)): Call => ({
    name,
    python: `${trialOf(id)}.${name}(${found})`,
    reads: [{ path: `trials/${id}/${name}`, query }],
  });
  switch (view) {
    case "checkpoints": {
      const query = { trial: String(trial.number) };
      const path = `experiments/${trial.experiment_id}/checkpoints`;
      const python = `client.request("GET", "/${path}", params={"trial": ${trial.number}})["items"]`;
      return { name: "checkpoints", python, reads: [{ path, query }] };
    }
    case "decisions":
      return decisionsCall(trial.experiment_id, { kind: [], text: "", trial: trial.number });
    case "logs": {
      const query = { segment, rank, search };
      return one("logs", query, joined(numbered("segment", segment), numbered("rank", rank), args({ search })));
    }
    case "lineage":
      return one("lineage", { at: weights === "best" ? weights : null });
    case "neighbors":
      return one("neighbors", { limit: String(NEIGHBORS) }, `limit=${NEIGHBORS}`);
    case "usage":
      return one("usage");
    case "profile": {
      const path = `trials/${id}/profile`;
      return { name: "profile", python: `${trialOf(id)}.profile()`, reads: [{ path, query: {}, body: {} }] };
    }
    default:
      return { name: "trial", python: `${trialOf(id)}.get()`, reads: [{ path: `trials/${id}`, query: {} }] };
  }
}

/** The state of the cluster: nodes, what runs on them, and what waits. */
export const CLUSTER: Call = {
  name: "cluster",
  python: 'client.request("GET", "/cluster")',
  reads: [{ path: "cluster", query: {} }],
};

/** The call that starts a search with this spec. */
export function createCall(spec: Readonly<Record<string, unknown>>): Call {
  const python = `client.create(${pythonOf(spec, 1)})`;
  return { name: "experiment", python, reads: [{ path: "experiments", query: {}, body: spec }] };
}

/** The outcome under another scheduler. `body`: the body of the request. */
export function replayCall(experiment: string, body: Readonly<Record<string, unknown>>): Call {
  const path = `experiments/${experiment}/replay`;
  const python = `client.request("POST", "/${path}", body=${pythonOf(body, 1)})`;
  return { name: "replay", python, reads: [{ path, query: {}, body }] };
}

/** A list of the settings: "tokens", "webhooks" or "audit". */
export function settingsCall(name: string): Call {
  return { name, python: `client.request("GET", "/${name}")["items"]`, reads: [{ path: name, query: {} }] };
}

/** A JSON value as a Python literal, with a line for each member of an object that is not inside a list. */
export function pythonOf(value: unknown, depth = 0): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number" && !Number.isFinite(value)) return `float("${value}")`;
  if (Array.isArray(value)) return `[${value.map((one) => pythonOf(one, Infinity)).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonOf(one, depth + 1)}`);
  if (depth === Infinity || members.length === 0) return `{${members.join(", ")}}`;
  const indent = "    ".repeat(depth);
  return `{\n${members.map((one) => `${indent}    ${one},\n`).join("")}${indent}}`;
}

/** The option that sends the token which the client and the command line send, too. */
export const WITH_TOKEN = '-H "Authorization: Bearer $TUNER_TOKEN"';

/** `service`: the address of the service, without a slash at its end. `asks`: whether it requires a token. */
export function asCurl(call: Call, service: string, asks = false): string {
  const token = asks ? ` ${WITH_TOKEN}` : "";
  const lines = call.reads.map(({ path, query, body }) => {
    const address = quoted(`${service}/api/v1/${path}`);
    if (body !== undefined)
      return `curl${token} -X POST ${address} -H 'content-type: application/json' -d ${quoted(JSON.stringify(body))}\n`;
    const parts = given(query).flatMap(([name, value]) =>
      (typeof value === "string" ? [value] : value).map((one) => ` --data-urlencode ${quoted(`${name}=${one}`)}`),
    );
    return `curl${token}${parts.length > 0 ? " --get" : ""} ${address}${parts.join("")}\n`;
  });
  return lines.join("");
}

export function asPython(call: Call, service: string): string {
  const lines = ["import tuner", "", `with tuner.connect(${JSON.stringify(service)}) as client:`];
  return [...lines, `    ${call.name} = ${call.python}`, ""].join("\n");
}

/** Quote a text as one word for a shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Copy text to the clipboard, even on pages that were not loaded over HTTPS, where browsers offer no clipboard. */
export async function copyText(text: string): Promise<void> {
  if (window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("The browser does not allow this page to copy.");
}
