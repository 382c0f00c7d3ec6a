import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Series } from "../api/types";
import { CurvesPlot, type Look, type PlotData, type PlotHandlers, type Zoom } from "./plot";

const LOOK: Look = {
  mode: "max",
  objective: true,
  x: "step",
  xLabel: "iteration",
  log: false,
  logX: false,
  trim: true,
  theme: "light",
  rungs: [],
};

function curve(number: number, length: number, top = 0.5): Series {
  const x = Array.from({ length }, (_, i) => i + 1);
  return {
    trial_id: `trl_${number}`,
    number,
    state: "running",
    best_value: top,
    segments: [{ ordinal: 1, cause: "start", last_iteration: length, x, y: x.map((i) => (top * i) / 100) }],
  };
}

const shifted = (segment: Series["segments"][number], by: number) => ({
  ...segment,
  y: segment.y.map((value) => value! + by),
});

const NO_SOURCE = () => undefined;
const RANK = new Map(Array.from({ length: 30 }, (_, i) => [i, i + 1]));
const data = (series: readonly Series[], fields: Partial<PlotData> = {}): PlotData => ({
  series,
  rank: RANK,
  source: NO_SOURCE,
  live: true,
  ...fields,
});
const handlers: PlotHandlers = { onHover: () => {}, onSelect: () => {}, onOutside: () => {}, onZoom: () => {} };

/** The calls of all canvases. */
const calls: (string | symbol)[] = [];

/** A canvas that takes every call and draws nothing. */
function context(): CanvasRenderingContext2D {
  const fields: Record<string | symbol, unknown> = { measureText: () => ({ width: 30 }) };
  return new Proxy(fields, {
    get: (own, name) => own[name] ?? (() => void calls.push(name)),
    set: (own, name, value) => ((own[name] = value), true),
  }) as unknown as CanvasRenderingContext2D;
}

let plot: CurvesPlot;

beforeEach(() => {
  // The plot measures how long it takes to draw, which must not depend on the load of the machine.
  vi.useFakeTimers({
    toFake: ["setTimeout", "clearTimeout", "requestAnimationFrame", "cancelAnimationFrame", "performance"],
  });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockImplementation(context as never);
  vi.stubGlobal(
    "Path2D",
    class {
      moveTo() {}
      lineTo() {}
      rect() {}
      arc() {}
    },
  );
  const root = document.createElement("div");
  document.body.append(root);
  plot = new CurvesPlot(root, LOOK, handlers);
});

afterEach(() => {
  plot.destroy();
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

/** uPlot draws in a microtask. */
async function settle(): Promise<void> {
  for (let i = 0; i < 5; i++) await Promise.resolve();
}

async function begin(series: readonly Series[]): Promise<void> {
  plot.setData(data(series));
  await settle();
  Object.assign(plot.drawn, { all: 0, alone: 0 });
}

describe("the chart of curves", () => {
  const many = Array.from({ length: 30 }, (_, i) => curve(i, 50));

  it("draws only the curves that have changed, and all of them some seconds later", async () => {
    await begin(many);
    const next = many.map((one, i) => (i === 3 || i === 7 ? curve(i, 51) : one));
    plot.setData(data(next));
    await settle();
    expect(plot.drawn).toEqual({ all: 0, alone: 2 });
    plot.setData(data(next.map((one, i) => (i === 4 ? curve(i, 51) : one))));
    await settle();
    expect(plot.drawn).toEqual({ all: 0, alone: 3 });
    vi.advanceTimersByTime(3000);
    expect(plot.drawn).toEqual({ all: 1, alone: 3 });
    vi.advanceTimersByTime(10_000);
    expect(plot.drawn.all).toBe(1);
  });

  it("changes the colors of all curves at once if ranks change, and soon if there are very many points", async () => {
    const others = new Map([...RANK].map(([number, rank]) => [number, 31 - rank]));
    await begin(many);
    plot.setData(data(many, { rank: others }));
    expect(plot.drawn).toEqual({ all: 1, alone: 0 });
    const long = Array.from({ length: 30 }, (_, i) => curve(i, 2000));
    await begin(long);
    vi.advanceTimersByTime(10_000);
    Object.assign(plot.drawn, { all: 0, alone: 0 });
    plot.setData(data(long.map((one, i) => (i === 3 ? { ...one } : one))));
    expect(plot.drawn).toEqual({ all: 0, alone: 1 });
    plot.setData(data(long, { rank: others }));
    expect(plot.drawn.all).toBe(0);
    vi.advanceTimersByTime(1500);
    expect(plot.drawn.all).toBe(1);
    vi.advanceTimersByTime(10_000);
    expect(plot.drawn.all).toBe(1);
  });

  it("leaves nothing of the old curves if all of them change, as with another smoothing", async () => {
    await begin(many);
    plot.setData(data(many.map((one) => ({ ...one, segments: curve(one.number, 40).segments }))));
    expect(plot.drawn).toEqual({ all: 1, alone: 0 });
  });

  it("draws nothing if nothing has changed", async () => {
    await begin(many);
    plot.setData(data([...many]));
    await settle();
    vi.advanceTimersByTime(10_000);
    expect(plot.drawn).toEqual({ all: 0, alone: 0 });
  });

  it("draws all curves when the axes move, when curves are removed, and when the ranks are first known", async () => {
    await begin(many);
    plot.setData(data(many.map((one, i) => (i === 3 ? curve(i, 90) : one))));
    await settle();
    expect(plot.drawn.alone).toBe(0);
    expect(plot.drawn.all).toBeGreaterThan(0);
    await begin(many.slice(1));
    plot.setData(data(many.slice(2)));
    expect(plot.drawn.all).toBeGreaterThan(0);
    plot.setData(data(many, { rank: new Map() }));
    await begin(many);
    plot.setData(data(many, { rank: new Map() }));
    await settle();
    Object.assign(plot.drawn, { all: 0, alone: 0 });
    plot.setData(data(many));
    expect(plot.drawn.all).toBe(1);
  });

  it("spreads many points over frames", async () => {
    const long = Array.from({ length: 30 }, (_, i) => curve(i, 2000));
    const frames = vi.spyOn(globalThis, "requestAnimationFrame");
    plot.setData(data(many));
    await settle();
    expect(frames).not.toHaveBeenCalled();
    plot.setData(data(long));
    await settle();
    const asked = frames.mock.calls.length;
    expect(asked).toBeGreaterThan(0);
    vi.advanceTimersByTime(500);
    expect(frames.mock.calls.length).toBeGreaterThanOrEqual(asked + 1);
  });

  it("keeps the points that came while all curves were drawn again", async () => {
    const long = Array.from({ length: 30 }, (_, i) => curve(i, 2000));
    const more = (series: readonly Series[], at: number) => series.map((one, i) => (i === at ? { ...one } : one));
    const strokesAtTheEnd = async (changes: boolean) => {
      await begin(long);
      vi.advanceTimersByTime(10_000); // nothing is left to be drawn
      const once = more(long, 3);
      plot.setData(data(once));
      vi.advanceTimersByTime(3000); // all are being drawn on the hidden canvas
      if (changes) plot.setData(data(more(once, 5)));
      calls.length = 0;
      vi.advanceTimersByTime(500);
      const shown = calls.lastIndexOf("drawImage");
      expect(shown).toBeGreaterThan(0);
      return calls.slice(shown).filter((name) => name === "stroke").length;
    };
    expect(await strokesAtTheEnd(true)).toBe((await strokesAtTheEnd(false)) + 1);
  });

  it("shows the curves until all of them are drawn again if they were read again", async () => {
    const long = Array.from({ length: 30 }, (_, i) => curve(i, 2000));
    await begin(long);
    vi.advanceTimersByTime(10_000); // nothing is left to be drawn
    calls.length = 0;
    plot.setData(data(long.map((one) => ({ ...one }))));
    vi.advanceTimersByTime(500);
    expect(calls).toContain("drawImage");
  });

  it("keeps what is zoomed to while reports come in", async () => {
    await begin(many);
    plot.setZoom({ x: { min: 10, max: 20 }, y: { min: 0, max: 0.1 } });
    await settle();
    Object.assign(plot.drawn, { all: 0, alone: 0 });
    plot.setData(data(many.map((one, i) => (i === 3 ? curve(i, 90) : one))));
    await settle();
    expect(plot.drawn).toEqual({ all: 0, alone: 1 });
    plot.setZoom(null);
    await settle();
    expect(plot.drawn.all).toBeGreaterThan(0);
  });

  it("zooms and moves by keys", async () => {
    const zooms: (Zoom | null)[] = [];
    const onZoom = (zoom: Zoom | null) => {
      zooms.push(zoom);
      keyed.setZoom(zoom);
    };
    const root = document.createElement("div");
    document.body.append(root);
    const keyed = new CurvesPlot(root, LOOK, { ...handlers, onZoom });
    keyed.setData(data(many, { live: false }));
    await settle();
    const press = (key: string, more: KeyboardEventInit = {}) => {
      const event = new KeyboardEvent("keydown", { key, cancelable: true, bubbles: true, ...more });
      root.dispatchEvent(event);
      return event.defaultPrevented;
    };
    expect(press("+")).toBe(true);
    const first = zooms[0]!;
    const size = first.x.max - first.x.min;
    press("ArrowRight", { shiftKey: true });
    expect(zooms[1]!.x.min).toBeCloseTo(first.x.min + size / 4, 6);
    expect(zooms[1]!.y).toEqual(first.y);
    press("ArrowUp", { shiftKey: true });
    expect(zooms[2]!.y.min).toBeGreaterThan(first.y.min);
    // Without Shift, arrows go through the trials. With Ctrl, plus belongs to the browser.
    expect([press("ArrowRight"), press("+", { ctrlKey: true }), press("a")]).toEqual([false, false, false]);
    expect(zooms).toHaveLength(3);
    press("-");
    expect(zooms[3]).toBeNull();
    press("=");
    press("0");
    expect(zooms.slice(4).map((zoom) => zoom === null)).toEqual([false, true]);
    keyed.destroy();
    press("+");
    expect(zooms).toHaveLength(6);
  });

  it("zooms by as many keys as were pressed, even if the page has not drawn the first part yet", async () => {
    const zooms: (Zoom | null)[] = [];
    const root = document.createElement("div");
    const keyed = new CurvesPlot(root, LOOK, { ...handlers, onZoom: (zoom) => zooms.push(zoom) });
    keyed.setData(data(many, { live: false }));
    await settle();
    const press = (key: string) => root.dispatchEvent(new KeyboardEvent("keydown", { key }));
    const length = (zoom: Zoom | null | undefined) => zoom!.x.max - zoom!.x.min;
    press("+");
    press("+");
    expect(length(zooms[1])).toBeCloseTo(length(zooms[0]) / 2, 6);
    keyed.setZoom(zooms[1]!);
    press("-");
    press("-");
    press("+");
    expect(length(zooms[2])).toBeCloseTo(length(zooms[0]), 6);
    expect(zooms[3]).toBeNull();
    expect(length(zooms[4])).toBeCloseTo(length(zooms[0]), 6);
    keyed.setZoom(zooms[0]!); // as by the mouse
    press("+");
    expect(length(zooms[5])).toBeCloseTo(length(zooms[1]), 6);
    keyed.destroy();
  });

  it("shows the newest points of a running search over a metric whose values are below 0", () => {
    const one = curve(1, 50);
    const segments = one.segments.map((segment) => ({ ...segment, x: segment.x.map((at) => at - 200) }));
    plot.setLook({ ...LOOK, x: "metric" });
    plot.setData(data([{ ...one, segments }]));
    expect(plot["shown"]!.x.max).toBeGreaterThan(-150);
  });

  it("puts the words about a point on the side with more room, in a small window, too", async () => {
    const hover = vi.spyOn(handlers, "onHover");
    await begin(many);
    const { over } = plot["plot"]!;
    vi.spyOn(over, "getBoundingClientRect").mockReturnValue({ left: 0, top: 0, width: 280, height: 200 } as DOMRect);
    vi.spyOn(over, "offsetLeft", "get").mockReturnValue(58);
    const { points } = plot["lines"][0]!;
    const sides = [60, 220].map((clientX) => {
      let at = 0;
      while (points[at]! < clientX) at += 2;
      over.dispatchEvent(new MouseEvent("mousemove", { clientX, clientY: points[at + 1]! }));
      const found = hover.mock.calls.at(-1)![0];
      return [found?.left, found?.side];
    });
    expect(sides).toEqual([
      [118, "right"],
      [278, "left"],
    ]);
  });

  it("has room for the whole labels of long numbers", async () => {
    const room = () => Number.parseFloat(plot["plot"]!.over.style.left);
    await begin([curve(1, 50)]);
    const usual = room();
    await begin([curve(1, 50)].map((one) => ({ ...one, segments: [shifted(one.segments[0]!, 123456)] })));
    const labels = plot["plot"]!.axes[1] as unknown as { _values: string[] };
    expect(labels._values).toContain("123456.10");
    expect(room()).toBeGreaterThanOrEqual(6.6 * "123456.10".length);
    expect(room()).toBeGreaterThan(usual);
  });

  it("zooms out and moves by keys beyond the part that was read more finely", async () => {
    const zooms: (Zoom | null)[] = [];
    const root = document.createElement("div");
    const keyed = new CurvesPlot(root, LOOK, { ...handlers, onZoom: (zoom) => zooms.push(zoom) });
    const part = { x: { min: 400, max: 500 }, y: { min: 2, max: 2.5 } };
    keyed.setZoom(part);
    const x = Array.from({ length: 103 }, (_, i) => 399 + i);
    const segment = { ordinal: 1, cause: "start" as const, last_iteration: 1000, x, y: x.map((at) => at / 200) };
    keyed.setData(data([{ ...curve(1, 1000), segments: [segment] }], { whole: [curve(1, 1000)] }));
    await settle();
    const press = (key: string, shiftKey = false) => {
      root.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey }));
      keyed.setZoom(null);
      keyed.setZoom(part);
      return zooms.at(-1);
    };
    expect(press("ArrowRight", true)?.x).toEqual({ min: 425, max: 525 });
    expect(press("ArrowUp", true)?.y).toEqual({ min: 2.125, max: 2.625 });
    expect(press("-")).toEqual({ x: { min: 350, max: 550 }, y: { min: 1.75, max: 2.75 } });
    keyed.destroy();
  });

  it("draws everything if as many other curves take the place of some", async () => {
    await begin(many.slice(0, 29));
    plot.setData(data(many.slice(1)));
    await settle();
    expect(plot.drawn.all).toBeGreaterThan(0);
  });

  it("leaves nothing of the curves on a log axis without positive values, and draws them again without it", async () => {
    const hover = vi.spyOn(handlers, "onHover");
    const hovered = () => {
      const over = [...document.querySelectorAll(".u-over")].at(-1)!;
      over.dispatchEvent(new MouseEvent("mousemove", { clientX: 1, clientY: 1 }));
      return hover.mock.calls.at(-1)![0];
    };
    await begin([curve(1, 20, -0.5)]);
    expect(hovered()).toMatchObject({ number: 1 });
    calls.length = 0;
    plot.setLook({ ...LOOK, log: true });
    await settle();
    expect(calls).toContain("clearRect");
    expect(plot.drawn.all).toBe(0);
    expect(hovered()).toBeNull();
    plot.setLook(LOOK);
    await settle();
    expect(plot.drawn.all).toBeGreaterThan(0);
    expect(hovered()).toMatchObject({ number: 1 });
  });
});
