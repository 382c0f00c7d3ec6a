import { afterEach, describe, expect, it, vi } from "vitest";
import { askEarly, forgetEarly, takeEarly } from "./early";

const WANTED = { files: ["assets/page.js", "assets/page.css"], points: 400, sample: 1000, rows: 200 };
const EXPERIMENT = { metric: "val/loss", mode: "min", trials: 7 };

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
      "/team/tuner/api/v1/experiments/exp_1/trials/sample?size=1000",
      "/team/tuner/api/v1/experiments/exp_1/curves?points=400&limit=1000&metric=val%2Floss&x=step",
    ]);
  });

  it("reads the first rows of the table of very many trials, unless others are asked for", async () => {
    const many = { ...EXPERIMENT, trials: 5000 };
    const asked = open("/experiments/exp_1?x=time&metric=accuracy", many);
    await settled();
    expect(asked[1]).toBe("/api/v1/experiments/exp_1/trials?sort=best_value&page_size=200");
    expect(asked[3]).toContain("metric=accuracy&x=time");
    const sorted = open("/experiments/exp_1?sort=number&tab=parameters", many);
    await settled();
    expect(sorted.slice(1)).toEqual(["/api/v1/experiments/exp_1/trials/sample?size=1000"]);
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
