import { afterEach, describe, expect, it, vi } from "vitest";
import { askEarly, forgetEarly, takeEarly } from "./early";

const WANTED = {
  files: ["assets/page.js", "assets/page.css"],
  columns: "application/columns",
  points: 400,
  sample: 1000,
  rows: 200,
  decisions: 50,
};
const EXPERIMENT = { metric: "val/loss", mode: "min", trials: 7, time_attr: "training_iteration", objectives: [{}] };

// happy-dom would load them.
const links = vi.spyOn(document.head, "append").mockReturnValue();

function open(path: string, experiment: object | null = EXPERIMENT): string[] {
  window.history.replaceState(null, "", path);
  const asked: string[] = [];
  links.mockClear();
  vi.stubGlobal("fetch", (url: string) => {
    asked.push(url.replace(location.origin, ""));
    return Promise.resolve(new Response(JSON.stringify(experiment), { status: experiment ? 200 : 401 }));
  });
  askEarly(WANTED);
  return asked;
}

const settled = () => new Promise((done) => setTimeout(done));

afterEach(() => {
  forgetEarly();
  vi.unstubAllGlobals();
});

describe("askEarly", () => {
  it("loads the files of the page, and reads the experiment before the rest", async () => {
    const asked = open("/team/tuner/experiments/exp_1");
    expect(asked).toEqual(["/team/tuner/api/v1/experiments/exp_1"]);
    const added = links.mock.calls.map(([link]) => link as HTMLLinkElement);
    expect(added.map((link) => [link.rel, link.getAttribute("href")])).toEqual([
      ["modulepreload", "/team/tuner/assets/page.js"],
      ["preload", "/team/tuner/assets/page.css"],
    ]);
    await settled();
    expect(asked.slice(1)).toEqual([
      "/team/tuner/api/v1/experiments/exp_1/curves?points=400&limit=1000&metric=val%2Floss&x=step",
      "/team/tuner/api/v1/experiments/exp_1/trials/sample?size=1000",
      "/team/tuner/api/v1/experiments/exp_1/decisions?page_size=50",
    ]);
  });

  it("asks for the less urgent answers only when the service has computed the curves, or has failed to", async () => {
    for (const fail of [false, true]) {
      let end = () => {};
      const asked: string[] = [];
      window.history.replaceState(null, "", "/experiments/exp_1");
      vi.stubGlobal("fetch", (url: string, { headers }: { headers: { Accept: string } }) => {
        asked.push(`${new URL(url).pathname.split("exp_1")[1]} ${headers.Accept}`);
        const answer = new Response(JSON.stringify(EXPERIMENT));
        if (!url.includes("/curves")) return Promise.resolve(answer);
        return new Promise((resolve, reject) => (end = () => (fail ? reject(new Error("gone")) : resolve(answer))));
      });
      askEarly(WANTED);
      await settled();
      expect(asked).toEqual([" application/json", "/curves application/columns"]);
      // The page may take an answer before it is asked for.
      const url = `${location.origin}/api/v1/experiments/exp_1/trials/sample?size=1000`;
      const taken = takeEarly(new Request(url));
      end();
      await settled();
      expect(asked.slice(2)).toEqual(["/trials/sample application/json", "/decisions application/json"]);
      expect(await (await taken!).json()).toEqual(EXPERIMENT);
      forgetEarly();
    }
  });

  it("watches the experiment even if the page takes the answer at once", async () => {
    const asked = open("/experiments/exp_1");
    const taken = takeEarly(new Request(`${location.origin}/api/v1/experiments/exp_1`))!;
    expect(await (await taken).json()).toEqual(EXPERIMENT);
    await settled();
    expect(asked).toHaveLength(4);
  });

  it("reads the first rows of the table of very many trials, unless others are asked for", async () => {
    const many = { ...EXPERIMENT, trials: 5000 };
    const asked = open("/experiments/exp_1?x=time&metric=accuracy", many);
    await settled();
    expect(asked[1]).toBe("/api/v1/experiments/exp_1/trials?sort=best_value&page_size=200");
    expect(asked[2]).toContain("metric=accuracy&x=time");
    expect(asked[3]).toContain("/trials/sample");
    const runs = { single: { middle: 0.4, weight: 0.5 }, repeated: [], dropped: [] };
    const repeated = open("/experiments/exp_1", { ...many, best: { runs } });
    await settled();
    expect(repeated[1]).toBe("/api/v1/experiments/exp_1/trials?sort=expected_value&page_size=200");
    const several = open("/experiments/exp_1", { ...many, objectives: [{}, {}] });
    await settled();
    expect(several[1]).toBe("/api/v1/experiments/exp_1/trials?sort=front&page_size=200&fronts=true");
    const sorted = open("/experiments/exp_1?sort=number&tab=parameters", many);
    await settled();
    expect(sorted.slice(1)).toEqual([
      "/api/v1/experiments/exp_1/trials/sample?size=1000",
      "/api/v1/experiments/exp_1/decisions?page_size=50",
    ]);
  });

  it("asks for the curves over the axis that the page shows", async () => {
    for (const [query, time_attr, axis] of [
      ["?x=trial_time", "training_iteration", "x=trial_time"],
      ["?x=metric%3Aval%2Fepoch", "training_iteration", "x=metric&x_metric=val%2Fepoch"],
      ["", "time_total_s", "x=trial_time"],
      ["", "epoch", "x=metric&x_metric=epoch"],
      ["?x=step", "epoch", "x=step"],
    ] as const) {
      const asked = open(`/experiments/exp_1${query}`, { ...EXPERIMENT, time_attr });
      await settled();
      expect(asked[1]).toMatch(new RegExp(`&metric=val%2Floss&${axis}$`));
    }
  });

  it("does nothing on other pages, and stops if the experiment cannot be read", async () => {
    expect(open("/experiments")).toEqual([]);
    expect(open("/trials/trl_1")).toEqual([]);
    const asked = open("/experiments/exp_1", null);
    await settled();
    expect(asked).toHaveLength(1);
  });
});

describe("takeEarly", () => {
  it("gives each answer once, to a GET of the same address, until it may be out of date", async () => {
    open("/experiments/exp_1");
    await settled();
    const url = `${location.origin}/api/v1/experiments/exp_1`;
    expect(takeEarly(new Request(url, { method: "DELETE" }))).toBeUndefined();
    const answer = await takeEarly(new Request(url))!;
    expect(await answer.json()).toEqual(EXPERIMENT);
    expect(takeEarly(new Request(url))).toBeUndefined();
    forgetEarly();
    expect(takeEarly(new Request(`${url}/trials/sample?size=1000`))).toBeUndefined();
  });
});
