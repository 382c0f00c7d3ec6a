import { describe, expect, it } from "vitest";
import { asCurl, asPython, curvesCall, trialCurvesCall, trialsCall } from "./copies";

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
