import { describe, expect, it } from "vitest";
import schema from "../api/schema.ts?raw";
import { changesAmong, outcome, pageOf, said } from "./audit";

describe("the audit trail in words", () => {
  it("says what was done, and to which object", () => {
    expect(said("POST", "/api/v1/experiments/exp_1/pause")).toEqual({ words: "paused", subject: "exp_1", made: null });
    expect(said("DELETE", "/team/tuner/api/v1/experiments/exp_1")).toMatchObject({
      words: "deleted",
      subject: "exp_1",
    });
    expect(said("POST", "/api/v1/tokens")).toMatchObject({ words: "created a token", subject: null });
  });

  it("names what was created", () => {
    expect(said("POST", "/api/v1/experiments", "exp_1")).toEqual({
      words: "created the experiment",
      subject: "exp_1",
      made: null,
    });
    expect(said("POST", "/api/v1/webhooks", "whk_1")).toMatchObject({ words: "created the webhook", subject: "whk_1" });
    expect(said("POST", "/api/v1/experiments/exp_1/fork", "exp_2")).toEqual({
      words: "forked",
      subject: "exp_1",
      made: "exp_2",
    });
    // A request that was refused, or an entry of an older version.
    expect(said("POST", "/api/v1/experiments")).toMatchObject({ words: "created an experiment", subject: null });
  });

  it("knows every call of the API that changes something", () => {
    const calls: [string, string][] = [];
    let path = "";
    for (const line of schema.split("\n")) {
      path = /^ {4}"(\/api\/v1\/[^"]+)": \{$/.exec(line)?.[1] ?? path;
      const method = /^ {8}(post|put|patch|delete): operations/.exec(line)?.[1];
      if (method) calls.push([method.toUpperCase(), path]);
    }
    expect(calls.length).toBeGreaterThan(20);
    const unknown = calls.filter(([method, path]) =>
      said(method, path.replace(/\{\w+\}/g, "x")).words.includes("/api/"),
    );
    expect(unknown).toEqual([]);
  });

  it("shows an unknown call as it is", () =>
    expect(said("PUT", "/api/v1/new")).toMatchObject({ words: "PUT /api/v1/new", subject: null }));

  it("leaves out checks of specs, valid or not, unless they were not allowed or failed", () => {
    const entry = (path: string, status = 200) => ({ method: "POST", path: `/api/v1/${path}`, status });
    const checks = Array.from({ length: 60 }, () => entry("experiments/dry-run"));
    checks.push(entry("experiments/dry-run", 400), entry("experiments/dry-run", 422));
    const [refused, made] = [entry("experiments/dry-run", 403), entry("experiments", 201)];
    expect(changesAmong([...checks, refused, ...checks, made])).toEqual([refused, made]);
    const [invalid, broken] = [entry("experiments", 422), entry("experiments/dry-run", 500)];
    expect(changesAmong([invalid, broken])).toEqual([invalid, broken]);
    expect(changesAmong([made, made, made], 2)).toHaveLength(2);
  });

  it("says how it ended", () => {
    expect(outcome(202)).toEqual({ words: "done", good: true });
    expect(outcome(403).words).toBe("refused: not allowed");
    expect(outcome(500).words).toBe("failed: 500");
  });

  it("links to experiments and trials", () => {
    expect([pageOf("exp_1"), pageOf("trl_2"), pageOf("tok_3")]).toEqual(["/experiments/exp_1", "/trials/trl_2", null]);
  });
});
