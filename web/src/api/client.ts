/** The calls of the HTTP API. Every failure is an ApiError with a sentence that can be shown. */

import type {
  Curves, Decision, DecisionKind, Experiment, Importances, Lineage, LogPart, Page, Problem, SegmentItem, Trial, TrialCurves, TrialWithSegments,
  UsageSeries, XAxis,
} from "./types";

const BASE = "/api/v1";

export class ApiError extends Error {
  readonly status: number;
  readonly problem: Problem | null;

  /** `status` is 0 where the service could not be reached at all. */
  constructor(status: number, message: string, problem: Problem | null = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.problem = problem;
  }

  get unreachable(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

type Query = Record<string, string | number | readonly string[] | undefined>;

async function call<T>(method: "GET" | "POST", path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const one of value as string[]) search.append(key, one);
    else if (value !== undefined && value !== "") search.set(key, String(value));
  }
  const url = `${BASE}${path}${search.size ? `?${search}` : ""}`;
  let response: Response;
  try {
    response = await fetch(url, { method, headers: { Accept: "application/json" }, ...(signal ? { signal } : {}) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The service does not answer.");
  }
  if (response.ok) return (await response.json()) as T;
  const problem = await problemOf(response);
  throw new ApiError(response.status, problem?.detail || problem?.title || `${response.status} ${response.statusText}`, problem);
}

async function problemOf(response: Response): Promise<Problem | null> {
  if (!response.headers.get("content-type")?.includes("json")) return null;
  try {
    return (await response.json()) as Problem;
  } catch {
    return null;
  }
}

/** All pages of a list, one after the other. */
async function all<T>(path: string, query: Query, signal?: AbortSignal): Promise<T[]> {
  const items: T[] = [];
  let token: string | undefined;
  do {
    const page: Page<T> = await call<Page<T>>("GET", path, { ...query, page_token: token }, signal);
    items.push(...page.items);
    token = page.next_page_token ?? undefined;
  } while (token !== undefined);
  return items;
}

export interface DecisionQuery {
  trial?: number;
  kind?: readonly DecisionKind[];
  text?: string;
  page_size?: number;
  page_token?: string;
}

/** What an experiment can be asked for. The service says which of these its state allows. */
export type Action = Exclude<Experiment["actions"][number], "stop">;

export const api = {
  experiments: (query: { state?: string; name?: string; page_size?: number; page_token?: string }, signal?: AbortSignal) =>
    call<Page<Experiment>>("GET", "/experiments", query, signal),
  experiment: (id: string, signal?: AbortSignal) => call<Experiment>("GET", `/experiments/${id}`, {}, signal),
  trials: (id: string, signal?: AbortSignal) => all<Trial>(`/experiments/${id}/trials`, { page_size: 1000 }, signal),
  curves: (id: string, metric: string, x: XAxis, signal?: AbortSignal) =>
    call<Curves>("GET", `/experiments/${id}/curves`, { metric, x, points: 400 }, signal),
  segments: (id: string, signal?: AbortSignal) => all<SegmentItem>(`/experiments/${id}/segments`, { page_size: 1000 }, signal),
  decisions: (id: string, query: DecisionQuery, signal?: AbortSignal) =>
    call<Page<Decision>>("GET", `/experiments/${id}/decisions`, { ...query }, signal),
  trial: (id: string, signal?: AbortSignal) => call<TrialWithSegments>("GET", `/trials/${id}`, {}, signal),
  trialCurves: (id: string, x: XAxis, signal?: AbortSignal) => call<TrialCurves>("GET", `/trials/${id}/curves`, { x, max_points: 400 }, signal),
  logs: (id: string, query: { rank?: number; segment?: number; tail?: number; search?: string }, signal?: AbortSignal) =>
    call<{ items: LogPart[] }>("GET", `/trials/${id}/logs`, query, signal),
  usage: (id: string, signal?: AbortSignal) => call<{ items: UsageSeries[] }>("GET", `/trials/${id}/usage`, {}, signal),
  lineage: (id: string, signal?: AbortSignal) => call<Lineage>("GET", `/trials/${id}/lineage`, {}, signal),
  importance: (id: string, signal?: AbortSignal) => call<Importances>("GET", `/experiments/${id}/importance`, {}, signal),
  act: (id: string, action: Action) => call<Experiment>("POST", `/experiments/${id}/${action}`),
  stopTrial: (id: string) => call<Trial>("POST", `/trials/${id}/stop`),
  eventsUrl: (id: string, after: number) => `${BASE}/experiments/${id}/events?after=${after}`,
};
