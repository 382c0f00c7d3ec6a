/** The call of the service that gives what a chart shows, as Python and as curl, to take elsewhere. */

import type { XAxis } from "../api/types";

/** A read of an experiment: a method of the Python client with its arguments, and the same as an address. */
export interface Call {
  experiment: string;
  method: "curves" | "trials" | "importance";
  /** The arguments by name; those that are null keep their default. */
  query: Readonly<Record<string, string | readonly string[] | null>>;
}

export function curvesCall(experiment: string, metric: string, x: XAxis): Call {
  return { experiment, method: "curves", query: { metric, x: x === "step" ? null : x } };
}

/** `where`: conditions of the service, such as "state=completed". */
export function trialsCall(experiment: string, where: readonly string[] = [], sort: string | null = null): Call {
  return { experiment, method: "trials", query: { sort, where: where.length > 0 ? where : null } };
}

const given = ({ query }: Call) =>
  Object.entries(query).filter((one): one is [string, string | readonly string[]] => one[1] !== null);

/** `service`: the address of the service, without a slash at its end. */
export function asCurl(call: Call, service: string): string {
  const query = given(call).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map((one) => ` --data-urlencode ${quoted(`${name}=${one}`)}`),
  );
  const get = query.length > 0 ? " --get" : "";
  const url = `${service}/api/v1/experiments/${call.experiment}/${call.method}`;
  return `curl${get} ${quoted(url)}${query.join("")}\n`;
}

export function asPython(call: Call, service: string): string {
  const args = given(call).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  const read = `client.experiment(${JSON.stringify(call.experiment)}).${call.method}(${args.join(", ")})`;
  return [
    "import tuner",
    "",
    `with tuner.connect(${JSON.stringify(service)}) as client:`,
    `    ${call.method} = ${call.method === "trials" ? `list(${read})` : read}`,
    "",
  ].join("\n");
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
  if (!done) throw new Error("The browser does not let this page copy.");
}
