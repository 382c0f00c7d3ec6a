import { describe, expect, it } from "vitest";
import {
  asCurl,
  asPython,
  bestCall,
  createCall,
  curvesCall,
  decisionsCall,
  experimentsCall,
  importanceCall,
  replayCall,
  settingsCall,
  trialCall,
  trialCurvesCall,
  trialsCall,
} from "./copies";

const TIME = { x: "time", x_metric: null } as const;
const AT = "http://localhost:8000";

describe("a chart's call", () => {
  it("is Python that the client runs", () => {
    expect(asPython(curvesCall("exp_1", "val/loss", TIME), AT)).toBe(
      [
        "import tuner",
        "",
        'with tuner.connect("http://localhost:8000") as client:',
        '    curves = client.experiment("exp_1").curves(metric="val/loss", x="time")',
        "",
      ].join("\n"),
    );
    expect(asPython(curvesCall("exp_1", "loss", { x: "metric", x_metric: "epoch" }), AT)).toContain(
      '.curves(metric="loss", x="metric", x_metric="epoch")',
    );
    expect(asPython(trialsCall("exp_1", ["state=failed", 'params.opt?=["adam"]']), AT)).toContain(
      'trials = list(client.experiment("exp_1").trials(where=["state=failed","params.opt?=[\\"adam\\"]"]))',
    );
  });

  it("names the objective, and what the best values are over", () => {
    expect(asPython(importanceCall("exp_1", [], "latency"), AT)).toContain('.importance(metric="latency")');
    expect(asPython(importanceCall("exp_1", ["state=failed"]), AT)).toContain('.importance(where=["state=failed"])');
    const call = bestCall(["exp_1", "exp_2"], "loss", "trial_time");
    expect(asPython(call, AT)).toContain(
      '[client.experiment(one).best_so_far(metric="loss", x="trial_time") for one in ["exp_1","exp_2"]]',
    );
    expect(asCurl(call, AT).trim().split("\n")).toHaveLength(2);
  });

  it("is one curl command, whatever is in its values", () => {
    expect(asCurl(trialsCall("exp_1"), AT)).toBe("curl 'http://localhost:8000/api/v1/experiments/exp_1/trials'\n");
    expect(asCurl(trialsCall("exp_1", ["params.name=it's"]), AT)).toBe(
      "curl --get 'http://localhost:8000/api/v1/experiments/exp_1/trials'" +
        " --data-urlencode 'where=params.name=it'\\''s'\n",
    );
  });

  it("reads the curves of trials one by one, as they may belong to several experiments", () => {
    const call = trialCurvesCall(["trl_1", "trl_2"], TIME);
    expect(asPython(call, AT)).toContain('[client.trial(trial).curves(x="time") for trial in ["trl_1","trl_2"]]');
    expect(asCurl(call, AT).trim().split("\n")).toEqual([
      "curl --get 'http://localhost:8000/api/v1/trials/trl_1/curves' --data-urlencode 'x=time'",
      "curl --get 'http://localhost:8000/api/v1/trials/trl_2/curves' --data-urlencode 'x=time'",
    ]);
  });
});

describe("the call of a view", () => {
  it("asks for the rows that pass its filters", () => {
    const decisions = decisionsCall("exp_1", { kind: ["stop", "fail"], text: "iteration 9", trial: 3 });
    expect(decisions.python).toBe(
      'list(client.experiment("exp_1").decisions(trial=3, kind=["stop","fail"], text="iteration 9"))',
    );
    expect(asCurl(decisions, AT)).toContain("'kind=stop' --data-urlencode 'kind=fail'");
    expect(decisionsCall("exp_1", { kind: [], text: "", trial: undefined }).python).toContain(".decisions()");
    const none = { state: "", name: "", tag: "", project: "", archived: false, sort: "" };
    expect(experimentsCall(none).python).toBe("list(client.experiments())");
    const some = experimentsCall({ ...none, tag: "team=vision", archived: true, sort: "-best" });
    expect(some.python).toBe('list(client.experiments(sort="-best", tags="team=vision", archived="yes"))');
    expect(asCurl(some, AT)).toContain(
      "'sort=-best' --data-urlencode 'tag=team=vision' --data-urlencode 'archived=yes'",
    );
    expect(trialsCall("exp_1", [], "-best_value").python).toContain('.trials(sort="-best_value")');
  });

  it("of a trial is that of its open tab", () => {
    const trial = { id: "trl_1", experiment_id: "exp_1", number: 4 };
    const none = { segment: null, rank: null, search: null };
    expect(trialCall(trial, "overview", none).python).toBe('client.trial("trl_1").get()');
    expect(trialCall(trial, "lineage", none).python).toBe('client.trial("trl_1").lineage()');
    const best = trialCall(trial, "lineage", { ...none, weights: "best" });
    expect(best.python).toBe('client.trial("trl_1").lineage(at="best")');
    expect(asCurl(best, "http://h")).toContain("/trials/trl_1/lineage' --data-urlencode 'at=best'");
    expect(trialCall(trial, "neighbors", none).python, "as many as the page shows").toBe(
      'client.trial("trl_1").neighbors(limit=10)',
    );
    expect(trialCall(trial, "logs", { segment: "2", rank: "0", search: "loss" }).python).toBe(
      'client.trial("trl_1").logs(segment=2, rank=0, search="loss")',
    );
    expect(asCurl(trialCall(trial, "checkpoints", none), AT)).toBe(
      "curl --get 'http://localhost:8000/api/v1/experiments/exp_1/checkpoints' --data-urlencode 'trial=4'\n",
    );
    expect(trialCall(trial, "profile", none).python).toBe('client.trial("trl_1").profile()');
    expect(asCurl(trialCall(trial, "profile", none), AT)).toContain(
      "-X POST 'http://localhost:8000/api/v1/trials/trl_1/profile'",
    );
  });

  it("of a replay has its settings, one of which is a list", () => {
    const replay = replayCall("exp_1", { scheduler: { type: "asha" }, search: null });
    expect(replay.python).toContain('client.request("POST", "/experiments/exp_1/replay", body={');
    expect(replay.python).toContain('"search": None,');
    expect(asCurl(replay, AT)).toContain(`'http://localhost:8000/api/v1/experiments/exp_1/replay'`);
    expect(asCurl(replay, AT)).toContain(`-d '{"scheduler":{"type":"asha"},"search":null}'`);
    expect(settingsCall("tokens").python).toBe('client.request("GET", "/tokens")["items"]');
    expect(asCurl(settingsCall("audit"), AT)).toBe("curl 'http://localhost:8000/api/v1/audit'\n");
  });

  it("sends the token as curl if the service asks for one", () => {
    const token = 'curl -H "Authorization: Bearer $TUNER_TOKEN" ';
    expect(asCurl(trialsCall("exp_1", ["state=failed"]), AT, true)).toContain(`${token}--get 'http://`);
    expect(asCurl(createCall({ name: "a" }), AT, true)).toContain(`${token}-X POST 'http://`);
    expect(asCurl(createCall({ name: "a" }), AT)).not.toContain("Authorization");
  });

  it("of a new search has the spec as a Python literal and as JSON", () => {
    const spec = { name: "it's", space: { lr: { type: "uniform", q: null } }, on: true, points: [{ a: 1 }] };
    expect(createCall(spec).python).toBe(
      [
        "client.create({",
        '        "name": "it\'s",',
        '        "space": {',
        '            "lr": {',
        '                "type": "uniform",',
        '                "q": None,',
        "            },",
        "        },",
        '        "on": True,',
        '        "points": [{"a": 1}],',
        "    })",
      ].join("\n"),
    );
    expect(asCurl(createCall(spec), AT)).toContain(`-H 'content-type: application/json' -d '{"name":"it'\\''s"`);
  });
});
