import { describe, expect, it } from "vitest";
import { random } from "../test/run";
import {
  formatBrushes,
  withBrush,
  formatSort,
  formatZoom,
  parseBrushes,
  parseSort,
  parseZoom,
  formatCharts,
  parseCharts,
} from "./address";

describe("a zoom in the address", () => {
  it("is restored with the precision of a screen", () => {
    const next = random(5);
    for (let i = 0; i < 2000; i++) {
      const range = () => {
        const min = (next() - 0.5) * 10 ** (8 * next() - 4);
        return { min, max: min + Math.max(1e-9, Math.abs(min) * 10 ** (6 * next() - 4)) };
      };
      const zoom = { x: range(), y: range() };
      const found = parseZoom(formatZoom(zoom))!;
      for (const axis of ["x", "y"] as const) {
        const size = zoom[axis].max - zoom[axis].min;
        expect(Math.abs(found[axis].min - zoom[axis].min) / size).toBeLessThan(1e-3);
        expect(Math.abs(found[axis].max - zoom[axis].max) / size).toBeLessThan(1e-3);
      }
    }
  });

  it.each([null, "", "1,2", "1,2,3,x", "2,1,0,1", "1,2,0,Infinity", "1,2,3,3", ",,,"])(
    "is none where it says %s",
    (text) => {
      expect(parseZoom(text)).toBeNull();
    },
  );
});

describe("a sort in the address", () => {
  const best = { column: "best", descending: true };
  it("is left out where it is the usual one", () => {
    expect(formatSort(best, best)).toBeNull();
    expect(parseSort(null, best)).toBe(best);
    expect(parseSort("-", best)).toBe(best);
  });

  it.each([
    { column: "param:optimizer/lr", descending: false },
    { column: "number", descending: true },
    { column: "best", descending: false },
  ])("comes back: %o", (sort) => {
    expect(parseSort(formatSort(sort, best), best)).toEqual(sort);
  });
});

describe("brushes in the address", () => {
  it("are restored, whatever the parameters are called", () => {
    const brushes = { 'a,"b"|c': { from: 0.001, to: 0.01 }, width: { of: ["16", "not present"] } };
    expect(parseBrushes(formatBrushes(brushes))).toEqual(brushes);
    expect(withBrush(withBrush(null, "lr", { from: 1, to: 2 }), "size", { of: ["a"] })).toBe(
      '{"lr":[1,2],"size":["a"]}',
    );
    expect(withBrush('{"lr":[1,2],"size":["a"]}', "lr", null)).toBe('{"size":["a"]}');
    expect(formatBrushes({})).toBeNull();
    const inherited = '{"__proto__":[1,2],"constructor":["a"]}';
    expect(formatBrushes(parseBrushes(inherited))).toBe(inherited);
    expect([parseBrushes(null)["constructor"], parseCharts(null)["toString"]]).toEqual([undefined, undefined]);
  });

  it("keep the trials that lie on their ends", () => {
    const brushes = { best: { from: 0.812345678901, to: 0.987654 }, seed: { from: 1_000_001, to: 1_000_004 } };
    expect(parseBrushes(formatBrushes(brushes))).toEqual(brushes);
  });

  it.each([null, "", "x", "[1]", "3", '{"a": 1}', '{"a": []}', '{"a": [1]}', '{"a": [1, "x"]}'])(
    "are none where it says %s",
    (text) => {
      expect(parseBrushes(text)).toEqual({});
    },
  );
});

describe("the small charts of a trial in the address", () => {
  const zoom = { x: { min: 1, max: 20 }, y: { min: 0.5, max: 0.9 } };
  it("are restored, whatever the metrics are called", () => {
    const charts = {
      'a,"b"': { log: true, zoom: null, x: "" },
      loss: { log: false, zoom, x: "metric:tokens" },
      both: { log: true, zoom, x: "step" },
    };
    expect(parseCharts(formatCharts(charts))).toEqual(charts);
    expect(formatCharts({ loss: { log: false, zoom: null, x: "step" } })).toBeNull();
  });

  it.each([null, "", "x", "[1]", "3", '{"a": 1}', '{"a": [1]}'])("have the defaults if the address says %s", (text) => {
    expect(parseCharts(text)).toEqual({});
  });

  it("are not zoomed if the zoom is invalid", () => {
    expect(parseCharts('{"a": ["", "step", "1,2"]}')).toEqual({ a: { log: false, zoom: null, x: "step" } });
  });
});
