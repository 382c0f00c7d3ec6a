import { MantineProvider } from "@mantine/core";
import { act, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { Series } from "../api/types";
import { STEP } from "./across";
import type { PlotHandlers, Zoom } from "./plot";
import { OverlayChart } from "./OverlayChart";

interface Made {
  zoomed: Zoom | null;
  handlers: PlotHandlers;
}
const made: Made[] = [];

vi.mock("./plot", () => ({
  CurvesPlot: class {
    zoomed: Zoom | null = null;
    readonly handlers: PlotHandlers;
    constructor(_root: unknown, _look: unknown, handlers: PlotHandlers) {
      this.handlers = handlers;
      made.push(this);
    }
    setZoom(zoom: Zoom | null) {
      this.zoomed = zoom;
    }
    setLook() {}
    setData() {}
    resize() {}
    destroy() {}
    pick() {}
  },
}));

it("shows everything again if its metric or axis changes", () => {
  const chart = (metric: string, x: "step" | "time") => (
    <MantineProvider env="test">
      <OverlayChart series={[]} names={["a"]} metric={metric} across={{ x, x_metric: null }} log={false} height={100} />
    </MantineProvider>
  );
  const { rerender } = render(chart("loss", "step"));
  const plot = made.at(-1)!;
  const zoom = { x: { min: 1, max: 2 }, y: { min: 0, max: 1 } };
  act(() => plot.handlers.onZoom(zoom));
  rerender(chart("loss", "step"));
  expect(plot.zoomed).toEqual(zoom);
  rerender(chart("loss", "time"));
  expect(plot.zoomed).toBeNull();
  act(() => plot.handlers.onZoom(zoom));
  rerender(chart("accuracy", "time"));
  expect(plot.zoomed).toBeNull();
});

it("says why a log axis shows nothing", () => {
  const series = [{ number: 0, segments: [{ ordinal: 1, x: [1, 2], y: [-1, -2] }] }] as unknown as Series[];
  const chart = (log: boolean) => (
    <MantineProvider env="test">
      <OverlayChart series={series} names={["a"]} metric="loss" across={STEP} log={log} height={100} />
    </MantineProvider>
  );
  const { rerender } = render(chart(true));
  expect(screen.getByText(/^No value is positive/)).toBeTruthy();
  rerender(chart(false));
  expect(screen.queryByText(/^No value is positive/)).toBeNull();
});
