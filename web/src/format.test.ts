import { describe, expect, it, vi } from "vitest";
import {
  ran,
  ranWords,
  ago,
  apart,
  bytes,
  clock,
  config,
  duration,
  elapsed,
  fieldName,
  metric,
  decimals,
  metricInColumn,
  moment,
  newDay,
  number,
  param,
  paramName,
  longestOf,
  plural,
  rangeWords,
  trained,
  readable,
} from "./format";
import type { Experiment, Params } from "./api/types";

describe("numbers with their nouns", () => {
  it.each([
    [0, "0 trials"],
    [1, "1 trial"],
    [2, "2 trials"],
    ["1", "1 trial"],
    ["1,000", "1,000 trials"],
  ])("are written so that they agree", (count, expected) => {
    expect(plural(count, "trial")).toBe(expected);
  });
});

describe("numbers", () => {
  it.each([
    [0.123456, "0.1235"],
    [12345.678, "12350"],
    [3, "3"],
    [-0.5, "-0.5"],
    [0, "0"],
    [0.00012, "1.2e-4"],
    [1e-5, "1e-5"],
    [2_500_000, "2.5e6"],
    [1234567.8, "1.235e6"],
    [1234567, "1.235e6"],
    [0.00012345678, "1.235e-4"],
    [1e20, "1e20"],
    [null, "–"],
    [undefined, "–"],
    [NaN, "–"],
  ])("%s is written %s", (value, text) => expect(number(value)).toBe(text));

  it("writes configurations", () => {
    expect(config({ "optimizer/lr": 1, "of~1the~1code": 2 })).toBe("optimizer/lr=1, of/the/code=2");
    expect(config({ lr: 0.000123, act: "relu", dims: [1, 2], flag: true })).toBe(
      "lr=1.23e-4, act=relu, dims=[1,2], flag=true",
    );
    expect(param(undefined)).toBe("");
    expect(config({ seed: 20240103, size: 1e6, big: 2 ** 53 - 1, most: 1e20, rate: 2_500_000.5 })).toBe(
      "seed=20240103, size=1000000, big=9007199254740991, most=1e20, rate=2.5e6",
    );
  });

  it("writes the branch of a choice with its label, unless that says less than the index", () => {
    const labels = { optimizer: ["sgd", "adam"], "optimizer/1/lr": ["low", "high"], net: ["mlp", "mlp"] };
    expect(paramName("optimizer/1/beta", labels)).toBe("optimizer/adam/beta");
    expect(paramName("optimizer/1/lr/0/x", labels)).toBe("optimizer/adam/lr/low/x");
    expect(paramName("net/1/width", labels)).toBe("net/1/width");
    expect(paramName("optimizer/2/beta", labels)).toBe("optimizer/2/beta");
    expect(paramName("optimizer", labels)).toBe("optimizer");
    expect(paramName("a/0/b", { a: ["{'x': 1, 'y': {'lower': 0, 'upper': 1}}", "z"] })).toBe("a/0/b");
    expect(config({ "optimizer/0/momentum": 0.9 }, labels)).toBe("optimizer/sgd/momentum=0.9");
  });

  it("says what sets a trial apart from the best", () => {
    const best = { trial_number: 7, params: { lr: 0.01, act: 1, depth: 3 } } as unknown as Experiment["best"];
    const of = (number: number, params: Params) =>
      apart({ number, params }, { best, labels: { act: ["relu", "tanh"] } });
    expect(of(2, { lr: 0.1, act: "tanh", depth: 3 })).toBe("lr=0.1 (best: 0.01)");
    expect(of(2, { lr: 0.01, act: "relu" })).toBe("act=relu (best: tanh), depth=not present (best: 3)");
    expect(of(2, { lr: 0.01, act: "tanh", depth: 3 })).toBe("the same configuration as the best, trial 7");
    expect(of(7, { lr: 0.01, act: "tanh", depth: 3 })).toBe("lr=0.01, act=tanh, depth=3");
    expect(apart({ number: 2, params: { lr: 0.1 } }, { best: null, labels: {} })).toBe("lr=0.1");
    const many = Object.fromEntries(Array.from({ length: 10 }, (_, i) => [`p${i}`, i]));
    expect(of(2, { lr: 0.01, act: "tanh", depth: 3, ...many })).toMatch(/p7=7 [^,]*, and 2 more that differ$/);
  });

  it("writes the value of a choice instead of its index", () => {
    const labels = { act: ["relu", "tanh"], layers: ["[8, 8]"] };
    expect(readable({ act: 1, lr: 0.5, layers: 0 }, labels)).toEqual({ act: "tanh", lr: 0.5, layers: "[8, 8]" });
    expect(readable({ net: 0 }, { net: [null, "branch 1"] })).toEqual({ net: null });
    expect(readable({ net: 2 }, { net: [null, "branch 1"] })).toEqual({ net: 2 });
    const plain = { lr: 0.5 };
    expect(readable(plain, labels)).toBe(plain);
  });

  it("writes sizes", () => {
    expect(bytes(512)).toBe("512 B");
    expect(bytes(1536)).toBe("1.5 KiB");
    expect(bytes(104_857_600)).toBe("100 MiB");
    expect(bytes(1023 * 1024)).toBe("1023 KiB");
    expect(bytes(1024 ** 2 - 1)).toBe("1 MiB");
    expect(bytes(1024 ** 5)).toBe("1024 TiB");
  });
});

describe("times", () => {
  it.each([
    [0, "0 s"],
    [0.0002, "1 ms"],
    [0.04, "40 ms"],
    [0.0996, "0.1 s"],
    [9.96, "10.0 s"],
    [42.4, "42 s"],
    [60, "1 min"],
    [200, "3 min 20 s"],
    [3600, "1 h 0 min"],
    [18_720, "5 h 12 min"],
    [273_600, "3 d 4 h"],
    [null, "–"],
    [-1, "–"],
  ])("%s s is written %s", (seconds, text) => expect(duration(seconds)).toBe(text));

  it("counts from the start to the end or to now", () => {
    const start = "2026-03-01T10:00:00Z";
    expect(elapsed(start, "2026-03-01T10:01:30Z", 0)).toBe(90);
    expect(elapsed(start, null, Date.parse(start) + 5000)).toBe(5);
    expect(elapsed(start, null, Date.parse(start) - 5000)).toBe(0);
    expect(elapsed(null, null, 0)).toBeNull();
  });

  it("says how long ago something happened", () => {
    const now = Date.parse("2026-03-01T10:00:00Z");
    expect(ago("2026-03-01T09:59:58Z", now)).toBe("just now");
    expect(ago("2026-03-01T09:59:18Z", now)).toBe("42 s ago");
    expect(ago("2026-03-01T07:30:00Z", now)).toBe("2 h ago");
  });
});

describe("reported values", () => {
  it.each([
    [0.123456789, "0.123457"],
    [0.5, "0.5"],
    [12, "12"],
    [null, "–"],
    [NaN, "–"],
    [0.00001234567, "1.23457e-5"],
    [1234567.8, "1.23457e6"],
    [1e20, "1e20"],
  ])("%s is written %s, as reasons write it", (value, text) => expect(metric(value)).toBe(text));

  it.each([
    [0.5, "0.5\u2007\u2007\u2007\u2007\u2007\u2007"],
    [0.3612, "0.3612\u2007\u2007\u2007"],
    [0.123456789, "0.123457\u2007"],
    [0.0161774, "0.0161774"],
    [12, "12\u2008\u2007\u2007\u2007\u2007\u2007\u2007\u2007"],
    [null, "–"],
    [0.00001234567, "1.23457e-5"],
  ])("%s is written %s in a column with up to 7 decimals", (value, text) =>
    expect(metricInColumn(value, 7)).toBe(text),
  );

  it("are padded to the longest value of their column", () => {
    expect([0.5, 0.0161774, 12, null, 1e-9].map(decimals)).toEqual([1, 7, 0, 0, 0]);
    expect(metricInColumn(12, 0)).toBe("12");
  });
});

describe("an interval of time", () => {
  it.each([
    [14.4, 31, "14 to 31 s"],
    [130, 320, "2 to 5 min"],
    [40, 200, "40 s to 3 min"],
    [5, 5.2, "about 5 s"],
    [6, 95, "6 s to 2 min"],
    [100, 4000, "2 min to 1 h 7 min"],
    [7300, 7800, "2 h 2 min to 2 h 10 min"],
  ])("from %s to %s s is written %s", (low, high, words) => expect(rangeWords({ low, high })).toBe(words));
});

describe("an amount of training", () => {
  it.each([
    ["27", "training_iteration", "27 iterations"],
    ["1", "training_iteration", "1 iteration"],
    ["9", "epoch", "9 × epoch"],
  ])("of %s %s is written %s", (amount, attr, words) => expect(trained(amount, attr)).toBe(words));
});

it("takes the length of a full training from the scheduler if only the scheduler has it", () => {
  const asha = { type: "asha", max_t: 27 };
  expect(longestOf({ max_t: null, scheduler: asha, resolved: null })).toBe(27);
  expect(longestOf({ max_t: 9, scheduler: asha, resolved: null })).toBe(9);
  expect(longestOf({ max_t: 81, scheduler: asha, resolved: null })).toBe(27);
  expect(longestOf({ max_t: null, scheduler: {}, resolved: null })).toBeNull();
});

describe("the time that an experiment has run", () => {
  const at = (seconds: number) => new Date(1000 * seconds).toISOString();
  const now = 500_000;
  it.each([
    ["runs, without a pause", at(100), null, 0, null, 400, "6 min 40 s"],
    ["runs again after a pause", at(100), null, 300, null, 100, "1 min 40 s, idle 5 min"],
    ["is paused again", at(100), null, 60, at(200), 40, "40 s, idle 6 min"],
    ["was continued and has ended", at(100), at(420), 300, null, 20, "20 s, idle 5 min"],
    ["has not started", null, null, 0, null, null, "–"],
  ])("leaves out pauses if it %s", (_, started_at, ended_at, paused_s, paused_since, seconds, words) => {
    const times = { started_at, ended_at, paused_s, paused_since };
    expect(ran(times, now)).toBe(seconds);
    expect(ranWords(times, now)).toBe(words);
  });
});

describe("the times of a list", () => {
  it("are written without a new format for each", () => {
    const Format = Intl.DateTimeFormat;
    const made = vi.spyOn(Intl, "DateTimeFormat").mockImplementation(function (...args) {
      return new Format(...args);
    });
    const asked = (["toLocaleString", "toLocaleDateString", "toLocaleTimeString"] as const).map((name) =>
      vi.spyOn(Date.prototype, name),
    );
    const time = (minute: number) => new Date(2026, 2, 1, 0, minute).toISOString();
    const words = Array.from({ length: 50 }, (_, minute) => time(minute)).flatMap((one) => [
      moment(one),
      clock(one),
      newDay(one, undefined),
      ago(one, Infinity),
    ]);
    expect(words.every(Boolean)).toBe(true);
    expect(made.mock.calls.length).toBeLessThanOrEqual(4);
    expect(asked.flatMap((one) => one.mock.calls)).toEqual([]);
    vi.restoreAllMocks();
  });

  it("are those of the time zone in which the browser is by now", () => {
    const before = process.env["TZ"];
    const times = ["2026-01-01T12:00:00Z", "2026-07-01T12:00:00Z", "2026-07-01T23:30:00Z"];
    const zones = ["Europe/Berlin", "Africa/Lagos", "Asia/Kolkata", "America/St_Johns"];
    const words = zones.map((zone) => {
      process.env["TZ"] = zone;
      return [...times.map(clock), newDay(times[2]!, times[1])];
    });
    if (before === undefined) delete process.env["TZ"];
    else process.env["TZ"] = before;
    expect(words.map(([winter, summer, late]) => [winter, summer, late])).toEqual([
      ["13:00:00", "14:00:00", "01:30:00"],
      ["13:00:00", "13:00:00", "00:30:00"],
      ["17:30:00", "17:30:00", "05:00:00"],
      ["08:30:00", "09:30:00", "21:00:00"],
    ]);
    expect(words.map((each) => each[3] !== null)).toEqual([true, true, true, false]);
  });

  it("have their offset from UTC where the hour occurs twice, as they would look reversed", () => {
    const before = process.env["TZ"];
    const shown = (zone: string, times: string[]) => {
      process.env["TZ"] = zone;
      return times.map(clock);
    };
    const around = ["2026-10-24T23:59:59Z", "2026-10-25T00:30:00Z", "2026-10-25T01:10:00Z", "2026-10-25T02:00:00Z"];
    const berlin = shown("Europe/Berlin", around);
    const newfoundland = shown("America/St_Johns", ["2026-11-01T04:00:00Z"]);
    const island = shown("Australia/Lord_Howe", ["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z"]);
    if (before === undefined) delete process.env["TZ"];
    else process.env["TZ"] = before;
    expect(berlin).toEqual(["01:59:59", "02:30:00 UTC+2", "02:10:00 UTC+1", "03:00:00"]);
    expect(newfoundland).toEqual(["01:30:00 UTC−2:30"]);
    expect(island).toEqual(["01:45:00 UTC+11", "01:45:00 UTC+10:30"]);
  });

  it("begin at 0 o'clock", () => expect(clock(new Date(2026, 2, 1, 0, 5).toISOString())).toBe("00:05:00"));

  it("have a date where the day changes, and at the start if it is not today's", () => {
    const now = new Date();
    const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
    expect(newDay(now.toISOString(), undefined)).toBeNull();
    expect(newDay(yesterday.toISOString(), undefined)).toContain(String(yesterday.getDate()));
    expect(newDay(yesterday.toISOString(), now.toISOString())).toContain(String(yesterday.getDate()));
    expect(newDay(yesterday.toISOString(), yesterday.toISOString())).toBeNull();
    expect(newDay("2020-01-05T12:00:00Z", now.toISOString())).toContain("2020");
  });
});

it.each([
  ["", ""],
  ["/space/lr/lower", "space.lr.lower"],
  ["/space/net~1width/lower", "space.net/width.lower"],
  ["/space/~01/lower", "space.~1.lower"],
  ["/configurations/0/net~1width", "configurations.0.net/width"],
  ["/configurations/0/a~01b", "configurations.0.a/b"],
  ["/params/a~01b", "params.a/b"],
  ["/params", "params"],
])("names the field of the pointer %s", (pointer, name) => {
  expect(fieldName(pointer)).toBe(name);
});
