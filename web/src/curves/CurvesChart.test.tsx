import { MantineProvider } from "@mantine/core";
import { act, cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Curves } from "../api/types";
import { CurvesChart, lateWords } from "./CurvesChart";
import type { CurvesPlot, PlotData } from "./plot";

let handlers: ConstructorParameters<typeof CurvesPlot>[2];
let data: PlotData;

vi.mock("./plot", () => ({
  CurvesPlot: class {
    constructor(_root: unknown, _look: unknown, given: typeof handlers) {
      handlers = given;
    }
    destroy() {}
    resize() {}
    setLook() {}
    setZoom() {}
    setData(given: PlotData) {
      data = given;
    }
    select() {}
    pick() {}
    mark() {}
  },
}));

beforeEach(() => {
  vi.stubGlobal(
    "ResizeObserver",
    class {
      observe() {}
      disconnect() {}
    },
  );
});
afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

function show(
  zoom: { x: [number, number]; y: [number, number] } | null = null,
  { log = false, series = [] as unknown[], smoothing = 0, rank = new Map<number, number>() } = {},
) {
  const onTrim = vi.fn();
  const curves = { metric: "loss", x: "step", x_metric: null, series } as unknown as Curves;
  render(
    <MantineProvider env="test">
      <CurvesChart
        curves={curves}
        whole={curves}
        only={null}
        smoothing={smoothing}
        colours={new Map()}
        objective={{ metric: "loss", mode: "min", scope: "all", best: null, labels: {} } as never}
        rank={rank}
        trials={new Map()}
        source={() => undefined}
        live={false}
        log={log}
        logX={false}
        rungs={[]}
        trim
        onTrim={onTrim}
        zoom={zoom as never}
        onZoom={() => {}}
        selected={null}
        marked={null}
        onSelect={() => {}}
        height={300}
      />
    </MantineProvider>,
  );
  act(() => handlers.onOutside(103, { until: 14, side: "above" }));
  return onTrim;
}

it("says on the chart that the beginning is not shown, and shows it at a click", () => {
  const onTrim = show();
  const note = screen.getByRole("button", { name: /Show the beginning/ });
  expect(note.textContent).toContain("Before iteration 14, most curves lie above this part.");
  fireEvent.click(note);
  expect(onTrim).toHaveBeenCalledWith(false);
  act(() => handlers.onOutside(0, null));
  expect(screen.queryByRole("button", { name: /Show the beginning/ })).toBeNull();
});

it.each([
  ["Show the beginning", null],
  ["Show everything", { x: [1, 2], y: [0, 1] }],
] as const)("keeps the focus in the chart after a click on %s", (name, zoom) => {
  show(zoom && { x: [...zoom.x], y: [...zoom.y] });
  const button = screen.getByRole("button", { name: new RegExp(name) });
  button.focus();
  fireEvent.click(button);
  expect(document.activeElement).toBe(screen.getByRole("img", { name: /^Curves of/ }));
});

it("does not say so of a part that the user chose", () => {
  show({ x: [1, 2], y: [0, 1] });
  expect(screen.queryByRole("button", { name: /Show the beginning/ })).toBeNull();
});

it("names the place on every axis", () => {
  const words = (x: string) => lateWords({ until: 90, side: "below" }, { x, x_metric: null } as never);
  expect(words("time")).toBe("Before 1 min 30 s, most curves lie below this part.");
  expect(words("trial_time")).toBe("Before 1 min 30 s of training, most curves lie below this part.");
});

it("says why a log axis shows nothing", () => {
  const series = [
    { number: 1, state: "completed", best_value: -2, segments: [{ ordinal: 1, x: [1, 2], y: [-1, -2] }] },
  ];
  show(null, { log: true, series });
  expect(screen.getByText(/^No value is positive/)).toBeTruthy();
  cleanup();
  const part = [{ ...series[0]!, segments: [{ ordinal: 1, x: [1, 2, 3], y: [-1, 0, 2] }] }];
  show(null, { log: true, series: part });
  expect(screen.getByText("2 points at or below 0 are not shown")).toBeTruthy();
  cleanup();
  show(null, { log: false, series });
  expect(screen.queryByText(/^No value is positive/)).toBeNull();
});

it("lets keys zoom out to the smoothed curves, not to those before smoothing", () => {
  const series = [{ number: 1, segments: [{ ordinal: 1, cause: "start", x: [1, 2, 3], y: [0, 10, 0] }] }];
  show(null, { series, smoothing: 0.9 });
  expect(data.series).not.toEqual(series);
  expect(data.whole).toEqual(data.series);
});

it("says which trial the arrow keys have opened, since the focus stays on the chart", () => {
  const trial = (number: number, best_value: number) => ({ number, state: "running", best_value, segments: [] });
  show(null, {
    series: [trial(4, 0.5), trial(7, 0.25)],
    rank: new Map([
      [7, 1],
      [4, 2],
    ]),
  });
  const said = () => document.querySelector("[aria-live]")!.textContent;
  expect(said()).toBe("");
  const press = () => fireEvent.keyDown(screen.getByRole("img", { name: /^Curves of loss/ }), { key: "ArrowDown" });
  press();
  expect(said()).toBe("Trial 7, running, rank 1, best loss 0.25");
  press();
  expect(said()).toBe("Trial 4, running, rank 2, best loss 0.5");
});
