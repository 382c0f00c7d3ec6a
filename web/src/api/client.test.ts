import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { STEP } from "../curves/across";
import { api, ApiError, LOST_MS } from "./client";

/** Never answers, as a service that hangs. */
const silent = (request: Request) =>
  new Promise<Response>((_, reject) => {
    request.signal.addEventListener("abort", () => reject(request.signal.reason as Error));
  });

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("fetch", silent);
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it.each([
  ["an experiment", () => api.experiment("exp_1")],
  ["the list of experiments", () => api.experiments({})],
  ["the cluster", () => api.cluster()],
])("says that the service is not responding if it does not answer a request for %s", async (_, ask) => {
  const failed = ask().then(
    () => null,
    (error: unknown) => error,
  );
  await vi.advanceTimersByTimeAsync(LOST_MS);
  const error = await failed;
  expect(error).toBeInstanceOf(ApiError);
  expect((error as ApiError).unreachable).toBe(true);
});

it("takes a request that the page has given up for no failure of the service", async () => {
  const given = new AbortController();
  const failed = api.experiment("exp_1", given.signal).catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(1000);
  given.abort();
  expect(await failed).not.toBeInstanceOf(ApiError);
  expect(vi.getTimerCount()).toBe(0);
});

it("gives up a request that index.html has sent early, too, which cannot be aborted", async () => {
  window.early = new Map([[`${location.origin}/api/v1/experiments/exp_1`, new Promise<Response>(() => {})]]);
  const failed = api.experiment("exp_1").catch((error: unknown) => error);
  expect(window.early.size).toBe(0);
  await vi.advanceTimersByTimeAsync(LOST_MS);
  expect(await Promise.race([failed, Promise.resolve("still waiting")])).toBeInstanceOf(ApiError);
});

it.each([
  ["an experiment", () => api.experiment("exp_1")],
  ["an experiment with all digits", () => api.exactExperiment("exp_1")],
  ["trials", () => api.sample("exp_1", 10)],
  ["curves", () => api.curves("exp_1", { metric: "loss", across: STEP })],
  ["decisions", () => api.decisions("exp_1", {})],
])("takes an answer about %s that was cut short, or that another server gave, for none", async (_, ask) => {
  for (const text of ['{"id": "exp_', "<!doctype html><p>Sign in to the network</p>", "\u0001"]) {
    vi.stubGlobal("fetch", () => Promise.resolve(new Response(text)));
    const error = await ask().catch((failed: unknown) => failed);
    expect(error).toBeInstanceOf(ApiError);
    expect((error as ApiError).unreachable).toBe(true);
  }
});

it.each([
  ["more trials", () => api.continue("exp_1", 10, "key")],
  ["a trial with a configuration", () => api.enqueue("exp_1", [{ lr: 0.1 }], "key")],
  ["a fork of a trial", () => api.forkTrial("trl_1", { checkpoint_id: null, params: {} }, "key")],
  ["a retry", () => api.actOnTrial("trl_1", "retry", "key")],
])("says that a request for %s without an answer can be sent again, and sends its key", async (_, send) => {
  const sent: (string | null)[] = [];
  vi.stubGlobal("fetch", (request: Request) => {
    sent.push(request.headers.get("idempotency-key"));
    return Promise.reject(new TypeError("Failed to fetch"));
  });
  await expect(send()).rejects.toThrow("Send this again: it is carried out only once.");
  expect(sent).toEqual(["key"]);
});

it.each([["a token", () => api.createToken({ name: "ci", role: "viewer", project: null, expires_days: null })]])(
  "does not claim that nothing was done if a request for %s has no answer",
  async (_, send) => {
    const gateway = () => Promise.resolve(new Response("<html>Gateway Timeout</html>", { status: 504 }));
    for (const answer of [() => Promise.reject(new TypeError("Failed to fetch")), gateway]) {
      vi.stubGlobal("fetch", answer);
      await expect(send()).rejects.toThrow(
        /may have received the request. Look for its effect before you send it again/,
      );
    }
    const refused = { title: "Conflict", detail: "the experiment is being cancelled" };
    vi.stubGlobal("fetch", () => Promise.resolve(Response.json(refused, { status: 409 })));
    await expect(send()).rejects.toThrow("the experiment is being cancelled");
  },
);
