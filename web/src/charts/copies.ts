/** The call of the service that gives what a chart shows, as Python and as curl, to take elsewhere. */

import type { Across } from "../curves/across";

/** What gives the numbers of a chart. */
export interface Call {
  /** The name of the result. */
  name: string;
  /** In terms of `client`. */
  python: string;
  /** Addresses below /api/v1, with their parameters. */
  reads: readonly { path: string; query: Query }[];
}

/** Parameters by name; those that are null keep their default. */
type Query = Readonly<Record<string, string | readonly string[] | null>>;

const given = (query: Query) =>
  Object.entries(query).filter((one): one is [string, string | readonly string[]] => one[1] !== null);

const args = (query: Query) =>
  given(query)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(", ");

/** The parameters of an axis. */
const over = ({ x, x_metric }: Across) => ({ x: x === "step" ? null : x, x_metric });

export function curvesCall(experiment: string, metric: string, across: Across): Call {
  const query = { metric, ...over(across) };
  const python = `client.experiment(${JSON.stringify(experiment)}).curves(${args(query)})`;
  return { name: "curves", python, reads: [{ path: `experiments/${experiment}/curves`, query }] };
}

/** `where`: conditions of the service, such as "state=completed". */
export function trialsCall(experiment: string, where: readonly string[] = []): Call {
  const query = { where: where.length > 0 ? where : null };
  const python = `list(client.experiment(${JSON.stringify(experiment)}).trials(${args(query)}))`;
  return { name: "trials", python, reads: [{ path: `experiments/${experiment}/trials`, query }] };
}

/** `first`: the number of the first trial. */
export function timelineCall(experiment: string, first: number): Call {
  const python = `client.experiment(${JSON.stringify(experiment)}).timeline(${first === 0 ? "" : `first=${first}`})`;
  const query = { first: first === 0 ? null : String(first) };
  return { name: "timeline", python, reads: [{ path: `experiments/${experiment}/timeline`, query }] };
}

/** All curves of some trials, which may belong to several experiments. */
export function trialCurvesCall(trials: readonly string[], across: Across): Call {
  const query = over(across);
  const python = `[client.trial(trial).curves(${args(query)}) for trial in ${JSON.stringify(trials)}]`;
  return { name: "curves", python, reads: trials.map((trial) => ({ path: `trials/${trial}/curves`, query })) };
}

/** `service`: the address of the service, without a slash at its end. */
export function asCurl(call: Call, service: string): string {
  const lines = call.reads.map(({ path, query }) => {
    const parts = given(query).flatMap(([name, value]) =>
      (typeof value === "string" ? [value] : value).map((one) => ` --data-urlencode ${quoted(`${name}=${one}`)}`),
    );
    return `curl${parts.length > 0 ? " --get" : ""} ${quoted(`${service}/api/v1/${path}`)}${parts.join("")}\n`;
  });
  return lines.join("");
}

export function asPython(call: Call, service: string): string {
  const lines = ["import tuner", "", `with tuner.connect(${JSON.stringify(service)}) as client:`];
  return [...lines, `    ${call.name} = ${call.python}`, ""].join("\n");
}

/** As one word of a shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Put text into the clipboard; also on pages that were not read over HTTPS, where browsers offer no clipboard. */
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
