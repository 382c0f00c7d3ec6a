/**
 * A script in index.html requests the data of an experiment's page while the bundle is still being loaded. The API's
 * calls find these answers by their URLs.
 */

import type { Experiment } from "./types";

declare global {
  interface Window {
    /** The answers to early requests, by URL. */
    early?: Map<string, Promise<Response>> | undefined;
  }
}

export interface Wanted {
  /** The files of the experiment's page, relative to the root of the pages. */
  files: readonly string[];
  /** The media type in which curves are requested. */
  columns: string;
  points: number;
  sample: number;
  rows: number;
  decisions: number;
}

/** What the script needs of an experiment. */
type Asked = Pick<Experiment, "metric" | "mode" | "objectives" | "trials" | "time_attr" | "best">;

/**
 * Begin to load an experiment's page and its data. index.html contains the text of this function, so it refers to
 * nothing outside itself. The experiment is read first: the stream of changes begins where the experiment's answer ends, so
 * nothing is missed. Then come the curves, and then the less urgent requests, since the service computes all answers on
 * one core.
 */
export function askEarly({ files, columns, points, sample, rows, decisions }: Wanted): void {
  const found = /^(.*\/)experiments\/(exp_\w+)$/.exec(location.pathname);
  if (!found) return;
  const [, root, id] = found;
  const early = (window.early = new Map<string, Promise<Response>>());
  const ask = (path: string, after?: Promise<unknown>, accept = "application/json") => {
    const url = `${location.origin}${root}api/v1/experiments/${id}${path}`;
    const asked = () => fetch(url, { headers: { Accept: accept } });
    const answer = after ? after.then(asked, asked) : asked();
    early.set(url, answer);
    // The caller of `takeEarly` handles the failure.
    answer.catch(() => {});
    return answer;
  };
  const chosen = new URLSearchParams(location.search);
  const name = encodeURIComponent;
  // The answer is cloned before a caller of `takeEarly` can read its body.
  ask("")
    .then((answer) => (answer.ok ? answer.clone().json() : null))
    .then((experiment: Asked | null) => {
      if (!experiment) return;
      const many = experiment.trials > sample;
      // After repeats and with several objectives, the table begins in the order of another column; see `expectedOf`.
      const value = typeof experiment.best?.runs?.single?.middle === "number" ? "expected_value" : "best_value";
      const several = experiment.objectives.length > 1;
      const sort = several ? "front" : `${experiment.mode === "max" ? "-" : ""}${value}`;
      if (many && !["sort", "state", "brush"].some((key) => chosen.has(key)))
        void ask(`/trials?sort=${sort}&page_size=${rows}${several ? "&fronts=true" : ""}`);
      let curves: Promise<unknown> | undefined;
      if ((chosen.get("tab") ?? "curves") === "curves") {
        const metric = name(chosen.get("metric") ?? experiment.metric);
        const attr = experiment.time_attr;
        const own = attr === "training_iteration" ? "step" : attr === "time_total_s" ? "trial_time" : `metric:${attr}`;
        const axis = chosen.get("x") ?? own;
        const x = axis.startsWith("metric:") ? `metric&x_metric=${name(axis.slice(7))}` : name(axis);
        curves = ask(`/curves?points=${points}&limit=${sample}&metric=${metric}&x=${x}`, undefined, columns);
      }
      // If there are very many trials, the charts may show the sample.
      void ask(`/trials/sample?size=${sample}`, many ? undefined : curves);
      void ask(`/decisions?page_size=${decisions}`, curves);
    })
    .catch(() => {});
  // A browser opens only six connections to a service, and the data is needed first.
  for (const file of files) {
    const link = document.createElement("link");
    // A style sheet is only preloaded: if it took effect here, before those of the bundle, theirs would override it.
    link.rel = file.endsWith(".css") ? "preload" : "modulepreload";
    if (file.endsWith(".css")) link.as = "style";
    link.crossOrigin = "";
    link.href = root + file;
    document.head.append(link);
  }
}

/** Return the answer to an early request, or undefined if there is none. Each answer is returned once. */
export function takeEarly(request: Request): Promise<Response> | undefined {
  if (request.method !== "GET") return undefined;
  const answer = window.early?.get(request.url);
  if (answer) window.early!.delete(request.url);
  return answer;
}

/** Discard the remaining early answers: something has changed since they were given. */
export function forgetEarly(): void {
  window.early = undefined;
}
