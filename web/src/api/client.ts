/** The calls of the HTTP API, with the paths and types of its OpenAPI document. Every failure is an ApiError with a sentence to show. */

import createClient from "openapi-fetch";
import { asQuery, type Across } from "../curves/across";
import { readClock } from "./clock";
import { COLUMNS, fromColumns } from "./columns";
import { takeEarly } from "./early";
import { exactly, exactText, parsed } from "./exact";
import { ROOT } from "./root";
import type { paths } from "./schema";
import { POINTS, SAMPLE } from "./sizes";
import type {
  CheckpointItem,
  Curves,
  Decision,
  DecisionKind,
  Experiment,
  LogEntry,
  Page,
  Problem,
  ProfileAsked,
  ProjectPatch,
  SegmentItem,
  SpecCopy,
  TrialPage,
  TrialSample,
  TrialWithSegments,
  Webhook,
} from "./types";
import type { EXPERIMENT_VERBS, TRIAL_VERBS } from "./verbs";

export class ApiError extends Error {
  readonly status: number;
  readonly problem: Problem | null;

  /** `status` is 0 if the service could not be reached at all. */
  constructor(status: number, message: string, problem: Problem | null = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.problem = problem;
  }

  /** True if something is wrong with the data that was sent. */
  get refused(): boolean {
    return this.status === 422;
  }

  get unreachable(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

/** Return true if an error says that there is no such thing, or no longer. */
export function isMissing(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 404;
}

/** Return true if an error says that the user's role does not allow the request. */
export function isForbidden(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status === 403;
}

// `fetch` is looked up for each call, so that tests can replace it.
const http = createClient<paths>({
  baseUrl: ROOT.slice(0, -1),
  headers: { Accept: "application/json" },
  bodySerializer: exactText,
  fetch: (request) => takeEarly(request) ?? timed(request),
});

async function timed(request: Request): Promise<Response> {
  const sent = Date.now();
  const answer = await fetch(request);
  readClock(answer, sent);
  return answer;
}

const NO_ANSWER = "The service is not responding.";
const MAYBE_DONE =
  "The service has not responded, but may have received the request. Look for its effect before you send it again.";
const SEND_AGAIN = "The service has not responded. Send this again: it is carried out only once.";

/** Return the data of a response, or throw an ApiError. */
async function answered<T>(
  call: Promise<{ data?: T; error?: unknown; response: Response }>,
  signal?: AbortSignal,
): Promise<T> {
  let found: { data?: T; error?: unknown; response: Response };
  try {
    found = await call;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, NO_ANSWER);
  }
  const { data, error, response } = found;
  if (response.ok && data !== undefined) return data;
  const problem = isProblem(error) ? error : null;
  throw new ApiError(
    response.status,
    problem?.detail || problem?.title || `${response.status} ${response.statusText}`,
    problem,
  );
}

/** Return the data of a response that was read as text, with all digits of parameters. */
async function exact<T>(
  call: Promise<{ data?: string; error?: unknown; response: Response }>,
  signal?: AbortSignal,
): Promise<T> {
  return decoded(parsed, await answered(call, signal)) as T;
}

/**
 * Decode an answer. Something that cannot be decoded was cut short on the way, or comes from a proxy instead of the service, so it
 * counts as no answer, and the page asks again.
 */
function decoded<From, To>(decode: (data: From) => To, data: From): To {
  try {
    return decode(data);
  } catch {
    throw new ApiError(0, NO_ANSWER);
  }
}

/**
 * Wait for the response to a request that does more if it is sent once more, such as one for a new token. Without an answer, nobody
 * knows if it was carried out.
 */
async function once<T>(
  call: Promise<{ data?: T; error?: unknown; response: Response }>,
  words = MAYBE_DONE,
): Promise<T> {
  try {
    return await answered(call);
  } catch (error) {
    if (error instanceof ApiError && error.unreachable && error.problem === null)
      throw new ApiError(error.status, words);
    throw error;
  }
}

/** Wait for a response without content. */
async function done(call: Promise<{ error?: unknown; response: Response }>): Promise<null> {
  return answered(call.then(({ error, response }) => ({ data: null, error, response })));
}

function isProblem(value: unknown): value is Problem {
  return typeof value === "object" && value !== null && "title" in value;
}

/** Read all pages of a list, one after the other. */
export async function pagesOf<T extends Pick<Page<unknown>, "next_page_token">>(
  page: (token: string | undefined) => Promise<T>,
): Promise<T[]> {
  const pages: T[] = [];
  let token: string | undefined;
  do {
    const found = await page(token);
    pages.push(found);
    token = found.next_page_token ?? undefined;
  } while (token !== undefined);
  return pages;
}

/** Read all items of a list. */
export async function all<T>(page: (token: string | undefined) => Promise<Page<T>>): Promise<T[]> {
  return (await pagesOf(page)).flatMap(({ items }) => items);
}

/** The time after which a request that is repeated every few seconds counts as lost. */
export const LOST_MS = 20_000;

/**
 * Give up a request that gets no answer, so that the page says so and asks again. A service that hangs, or a connection that was
 * cut on the way, as by a VPN, would leave the browser waiting for many minutes.
 */
async function timely<T>(signal: AbortSignal | undefined, read: (both: AbortSignal) => Promise<T>): Promise<T> {
  const both = new AbortController();
  const abort = () => both.abort();
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort);
  let timer: ReturnType<typeof setTimeout> | undefined;
  // A request that index.html has sent early cannot be aborted, so its answer is not waited for.
  const lost = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new ApiError(0, NO_ANSWER));
      abort();
    }, LOST_MS);
  });
  try {
    return await Promise.race([read(both.signal), lost]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

const AS_TEXT = { parseAs: "text" as const };
const aborting = (signal?: AbortSignal) => (signal ? { signal } : {});
export const from = (token: string | undefined) => (token === undefined ? {} : { page_token: token });

export interface DecisionQuery {
  trial?: number;
  kind?: DecisionKind[];
  text?: string;
  page_size?: number;
  page_token?: string;
}

export interface LogQuery {
  trial?: number;
  kind?: LogEntry["kind"][];
  page_size?: number;
  page_token?: string;
}

export interface TrialQuery {
  sort?: string;
  where?: string[];
  page_size?: number;
  page_token?: string;
}

export interface NewToken {
  name: string;
  role: "agent" | "viewer" | "editor" | "admin";
  project: string | null;
  expires_days: number | null;
}

export interface NewWebhook {
  url: string;
  events: Webhook["events"];
  format: Webhook["format"];
  project: string | null;
  threshold: number | null;
}

export interface ExperimentQuery {
  archived?: "no" | "yes" | "all";
  state?: Experiment["state"];
  name?: string;
  project?: string;
  /** "key=value", or only the key. */
  tag?: string[];
  page_size?: number;
  page_token?: string;
}

export interface CurvesQuery {
  metric: string;
  across: Across;
  /** A part of the axis, at a finer resolution. */
  from?: number;
  to?: number;
  /** Of the longest curve. */
  points?: number;
  /** The numbers of the trials. */
  trial?: number[];
}

/** The verbs of a table that have a button. */
type WithButton<T> = { [K in keyof T]: T[K] extends { button: null } ? never : K }[keyof T];

/** The actions on an experiment that need only one question to confirm. */
export type Action = WithButton<typeof EXPERIMENT_VERBS> | "archive" | "unarchive";

/** The actions on a trial that need only one question to confirm. */
export type TrialAction = WithButton<typeof TRIAL_VERBS>;

/** The fields of an experiment that can be changed at any time. Fields that are left out stay as they are. */
export interface ExperimentPatch {
  name?: string;
  notes?: string;
  tags?: Record<string, string | null>;
  num_samples?: number | null;
  priority?: number;
  weight?: number;
  limits?: Record<string, number | string | null>;
  /** A merge patch: null removes a parameter, and a domain replaces the old one. */
  space?: Record<string, unknown>;
  /** The values that new parameters had in the trials so far; null: they are not known. */
  assume?: Record<string, unknown>;
}

export interface ExperimentChanges {
  changes: Record<string, unknown>;
  learn: boolean;
}

/** Another scheduler or searcher for the recorded trials; null stands for the experiment's own. */
export interface ReplayAsked {
  scheduler: Record<string, unknown> | null;
  search: string | null;
  max_concurrent_trials: number | null;
}

export interface TrialFork {
  checkpoint_id: string | null;
  params: Record<string, unknown>;
}

/** The number of items to read at once if all of them are wanted. */
export const PAGE = 1000;

export const api = {
  experiments: (query: ExperimentQuery, signal?: AbortSignal): Promise<Page<Experiment>> =>
    timely(signal, (both) =>
      exact(http.GET("/api/v1/experiments", { params: { query }, ...AS_TEXT, signal: both }), signal),
    ),
  experiment: (id: string, signal?: AbortSignal): Promise<Experiment> =>
    timely(signal, (both) => {
      const asked = { params: { path: { experiment_id: id } }, ...AS_TEXT, signal: both };
      return exact(http.GET("/api/v1/experiments/{experiment_id}", asked), signal);
    }),
  /** The experiment with all digits of whole numbers above 2^53, which are then a BigInt. */
  exactExperiment: async (id: string, signal?: AbortSignal): Promise<Experiment> => {
    const asked = { params: { path: { experiment_id: id } }, parseAs: "text" as const, ...aborting(signal) };
    return decoded(
      exactly,
      await answered(http.GET("/api/v1/experiments/{experiment_id}", asked), signal),
    ) as Experiment;
  },
  /** The spec in the form in which it can be posted again, and what that form cannot contain. */
  spec: async (id: string, signal?: AbortSignal): Promise<SpecCopy> => {
    const asked = { params: { path: { experiment_id: id } }, parseAs: "text" as const, ...aborting(signal) };
    return decoded(
      exactly,
      await answered(http.GET("/api/v1/experiments/{experiment_id}/spec", asked), signal),
    ) as SpecCopy;
  },
  trials: (id: string, query: TrialQuery, signal?: AbortSignal): Promise<TrialPage> => {
    const asked = { params: { path: { experiment_id: id }, query }, ...AS_TEXT, ...aborting(signal) };
    return exact(http.GET("/api/v1/experiments/{experiment_id}/trials", asked), signal);
  },
  sample: (id: string, size: number, signal?: AbortSignal): Promise<TrialSample> => {
    const asked = { params: { path: { experiment_id: id }, query: { size } }, ...AS_TEXT, ...aborting(signal) };
    return exact(http.GET("/api/v1/experiments/{experiment_id}/trials/sample", asked), signal);
  },
  curves: async (id: string, { metric, across, ...part }: CurvesQuery, signal?: AbortSignal): Promise<Curves> => {
    const query = { points: POINTS, limit: SAMPLE, metric, ...asQuery(across), ...part };
    const params = { path: { experiment_id: id }, query };
    const asked = { params, headers: { Accept: COLUMNS }, parseAs: "arrayBuffer" as const, ...aborting(signal) };
    return decoded(fromColumns, await answered(http.GET("/api/v1/experiments/{experiment_id}/curves", asked), signal));
  },
  segments: (id: string, signal?: AbortSignal): Promise<SegmentItem[]> =>
    all((token) => {
      const params = { path: { experiment_id: id }, query: { page_size: PAGE, ...from(token) } };
      return answered(
        http.GET("/api/v1/experiments/{experiment_id}/segments", { params, ...aborting(signal) }),
        signal,
      );
    }),
  decisions: (id: string, query: DecisionQuery, signal?: AbortSignal): Promise<Page<Decision>> => {
    const params = { path: { experiment_id: id }, query };
    return answered(http.GET("/api/v1/experiments/{experiment_id}/decisions", { params, ...aborting(signal) }), signal);
  },
  log: (id: string, query: LogQuery, signal?: AbortSignal): Promise<Page<LogEntry>> => {
    const params = { path: { experiment_id: id }, query };
    return answered(http.GET("/api/v1/experiments/{experiment_id}/log", { params, ...aborting(signal) }), signal);
  },
  bestSoFar: (id: string, query: { metric?: string; x?: "time" | "trial_time" }, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/experiments/{experiment_id}/best-so-far", {
        params: { path: { experiment_id: id }, query },
        ...aborting(signal),
      }),
      signal,
    ),
  hypervolume: (id: string, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/experiments/{experiment_id}/hypervolume", {
        params: { path: { experiment_id: id } },
        ...aborting(signal),
      }),
      signal,
    ),
  /** Check a spec, which may have mistakes; the ApiError then names each of them. */
  dryRun: (spec: object, configurations: number, seconds: number | null, signal?: AbortSignal) =>
    answered(
      http.POST("/api/v1/experiments/dry-run", {
        params: { query: { configurations, ...(seconds === null ? {} : { seconds_per_iteration: seconds }) } },
        body: spec as never,
        ...aborting(signal),
      }),
      signal,
    ),
  timeline: (id: string, first: number, limit: number, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/experiments/{experiment_id}/timeline", {
        params: { path: { experiment_id: id }, query: { first, limit } },
        ...aborting(signal),
      }),
      signal,
    ),
  forecast: (id: string, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/experiments/{experiment_id}/forecast", {
        params: { path: { experiment_id: id } },
        ...aborting(signal),
      }),
      signal,
    ),
  replay: (id: string, body: ReplayAsked) =>
    answered(
      http.POST("/api/v1/experiments/{experiment_id}/replay", {
        params: { path: { experiment_id: id } },
        body: body as never,
      }),
    ),
  create: (spec: object, key: string) =>
    answered(http.POST("/api/v1/experiments", { params: { header: { "idempotency-key": key } }, body: spec as never })),
  tokens: (signal?: AbortSignal) => answered(http.GET("/api/v1/tokens", { ...aborting(signal) }), signal),
  createToken: (body: NewToken) => once(http.POST("/api/v1/tokens", { body: body as never })),
  revokeToken: (id: string) =>
    answered(http.POST("/api/v1/tokens/{token_id}/revoke", { params: { path: { token_id: id } } })),
  webhooks: (signal?: AbortSignal) => answered(http.GET("/api/v1/webhooks", { ...aborting(signal) }), signal),
  createWebhook: (body: NewWebhook) => once(http.POST("/api/v1/webhooks", { body: body as never })),
  deleteWebhook: (id: string) =>
    done(http.DELETE("/api/v1/webhooks/{webhook_id}", { params: { path: { webhook_id: id } } })),
  deliveries: (id: string, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/webhooks/{webhook_id}/deliveries", {
        params: { path: { webhook_id: id }, query: { page_size: 20 } },
        ...aborting(signal),
      }),
      signal,
    ),
  projects: (signal?: AbortSignal) => answered(http.GET("/api/v1/projects", { ...aborting(signal) }), signal),
  changeProject: (project: string, body: ProjectPatch) =>
    answered(http.PATCH("/api/v1/projects/{project}", { params: { path: { project } }, body: body as never })),
  cluster: (signal?: AbortSignal) =>
    timely(signal, (both) => answered(http.GET("/api/v1/cluster", { signal: both }), signal)),
  audit: (signal?: AbortSignal, token?: string) => {
    const query = token === undefined ? { page_size: 200 } : { page_size: PAGE, page_token: Number(token) };
    return answered(http.GET("/api/v1/audit", { params: { query }, ...aborting(signal) }), signal);
  },
  /** `where`: conditions of the service; only trials that meet them are used. */
  importance: (id: string, metric: string | null, where: readonly string[], signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/experiments/{experiment_id}/importance", {
        params: {
          path: { experiment_id: id },
          query: { ...(metric === null ? {} : { metric }), ...(where.length > 0 ? { where: [...where] } : {}) },
        },
        ...aborting(signal),
      }),
      signal,
    ),
  trial: (id: string, signal?: AbortSignal): Promise<TrialWithSegments> => {
    const asked = { params: { path: { trial_id: id } }, ...AS_TEXT, ...aborting(signal) };
    return exact(http.GET("/api/v1/trials/{trial_id}", asked), signal);
  },
  /** The trial with all digits of whole numbers above 2^53, which are then a BigInt. */
  exactTrial: async (id: string, signal?: AbortSignal): Promise<TrialWithSegments> => {
    const asked = { params: { path: { trial_id: id } }, parseAs: "text" as const, ...aborting(signal) };
    return decoded(exactly, await answered(http.GET("/api/v1/trials/{trial_id}", asked), signal)) as TrialWithSegments;
  },
  trialCurves: (id: string, across: Across, signal?: AbortSignal, points = POINTS) => {
    const params = { path: { trial_id: id }, query: { ...asQuery(across), points } };
    return answered(http.GET("/api/v1/trials/{trial_id}/curves", { params, ...aborting(signal) }), signal);
  },
  logs: (
    id: string,
    query: { rank?: number; segment?: number; tail?: number; limit?: number; search?: string },
    signal?: AbortSignal,
  ) =>
    answered(
      http.GET("/api/v1/trials/{trial_id}/logs", { params: { path: { trial_id: id }, query }, ...aborting(signal) }),
      signal,
    ),
  /** The URL of everything that one rank has printed in one segment, as plain text. */
  logUrl: (id: string, rank: number, segment: number | undefined) =>
    `${ROOT}api/v1/trials/${encodeURIComponent(id)}/logs/text?rank=${rank}${segment ? `&segment=${segment}` : ""}`,
  usage: (id: string, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/trials/{trial_id}/usage", { params: { path: { trial_id: id } }, ...aborting(signal) }),
      signal,
    ),
  live: (id: string, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/trials/{trial_id}/live", { params: { path: { trial_id: id } }, ...aborting(signal) }),
      signal,
    ),
  driverLog: (id: string, search: string, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/experiments/{experiment_id}/driver-log", {
        params: { path: { experiment_id: id }, query: { tail: 2000, ...(search && { search }) } },
        ...aborting(signal),
      }),
      signal,
    ),
  /** Profile a rank. The response comes when the time is up. */
  profile: (id: string, body: ProfileAsked) =>
    answered(
      http.POST("/api/v1/trials/{trial_id}/profile", { params: { path: { trial_id: id } }, body: body as never }),
    ),
  neighbors: (id: string, limit: number, signal?: AbortSignal) =>
    answered(
      http.GET("/api/v1/trials/{trial_id}/neighbors", {
        params: { path: { trial_id: id }, query: { limit } },
        ...aborting(signal),
      }),
      signal,
    ),
  /** The lineage of a trial's newest weights, or of those with which it reported its best value. */
  lineage: (id: string, signal?: AbortSignal, at: "newest" | "best" = "newest") =>
    answered(
      http.GET("/api/v1/trials/{trial_id}/lineage", {
        params: { path: { trial_id: id }, query: { at } },
        ...aborting(signal),
      }),
      signal,
    ),
  act: (id: string, action: Action) =>
    answered(http.POST(`/api/v1/experiments/{experiment_id}/${action}`, { params: { path: { experiment_id: id } } })),
  /** Let an experiment start more trials. One that has ended runs again. */
  continue: (id: string, more: number | null, key: string) =>
    once(
      http.POST("/api/v1/experiments/{experiment_id}/continue", {
        params: { path: { experiment_id: id }, header: { "idempotency-key": key } },
        body: { num_samples: more } as never,
      }),
      SEND_AGAIN,
    ),
  /** `revision`: the one at which the experiment must still be. */
  change: (id: string, patch: ExperimentPatch, revision: number) =>
    answered(
      http.PATCH("/api/v1/experiments/{experiment_id}", {
        params: { path: { experiment_id: id }, header: { "if-match": `"${revision}"` } },
        body: patch as never,
      }),
    ),
  delete: (id: string) =>
    done(http.DELETE("/api/v1/experiments/{experiment_id}", { params: { path: { experiment_id: id } } })),
  fork: (id: string, body: ExperimentChanges, key: string) =>
    answered(
      http.POST("/api/v1/experiments/{experiment_id}/fork", {
        params: { path: { experiment_id: id }, header: { "idempotency-key": key } },
        body: body as never,
      }),
    ),
  enqueue: (id: string, configurations: readonly Record<string, unknown>[], key: string) =>
    once(
      http.POST("/api/v1/experiments/{experiment_id}/enqueue", {
        params: { path: { experiment_id: id }, header: { "idempotency-key": key } },
        body: { configurations } as never,
      }),
      SEND_AGAIN,
    ),
  checkpoints: (id: string, trial: number, signal?: AbortSignal): Promise<CheckpointItem[]> =>
    all((token) => {
      const params = { path: { experiment_id: id }, query: { trial, page_size: PAGE, ...from(token) } };
      return answered(
        http.GET("/api/v1/experiments/{experiment_id}/checkpoints", { params, ...aborting(signal) }),
        signal,
      );
    }),
  pin: (id: string, pinned: boolean) =>
    answered(
      http.POST(`/api/v1/checkpoints/{checkpoint_id}/${pinned ? "pin" : "unpin"}`, {
        params: { path: { checkpoint_id: id } },
      }),
    ),
  /** Throw an error that says why a checkpoint cannot be downloaded, if so. Its archive is not read any further. */
  tryDownload: (id: string) =>
    timely(undefined, (signal) => {
      const params = { path: { checkpoint_id: id } };
      const call = http.GET("/api/v1/checkpoints/{checkpoint_id}/download", { params, parseAs: "stream", signal });
      return done(call.then(({ data, error, response }) => (void data?.cancel(), { error, response })));
    }),
  /** The URL of a checkpoint's files in one archive. */
  checkpointUrl: (id: string) => `${ROOT}api/v1/checkpoints/${encodeURIComponent(id)}/download`,
  actOnTrial: (id: string, action: TrialAction, key: string) =>
    once(
      http.POST(`/api/v1/trials/{trial_id}/${action}`, {
        params: { path: { trial_id: id }, header: { "idempotency-key": key } },
      }),
      SEND_AGAIN,
    ),
  forkTrial: (id: string, body: TrialFork, key: string) =>
    once(
      http.POST("/api/v1/trials/{trial_id}/fork", {
        params: { path: { trial_id: id }, header: { "idempotency-key": key } },
        body: body as never,
      }),
      SEND_AGAIN,
    ),
  session: (signal?: AbortSignal) => answered(http.GET("/api/v1/session", { ...aborting(signal) }), signal),
  signIn: (token: string) => answered(http.POST("/api/v1/session", { body: { token } })),
  signOut: () => done(http.DELETE("/api/v1/session")),
  /** The URL that an EventSource follows. */
  changesUrl: (id: string, after: number) =>
    `${ROOT}api/v1/experiments/${encodeURIComponent(id)}/changes?after=${after}`,
};
