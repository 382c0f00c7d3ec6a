import uPlot from "uplot";
import { afterEach, expect, it, vi } from "vitest";
import { ownTicks } from "./axes";
import { labelSize } from "./ticks";

afterEach(() => void vi.restoreAllMocks());

it("have labels that do not touch as soon as the chart is resized", async () => {
  const context = { measureText: () => ({ width: 30 }) };
  const ignored = new Proxy(context, { get: (own: object, name): unknown => Reflect.get(own, name) ?? (() => {}) });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockImplementation((() => ignored) as never);
  const labels: string[][] = [];
  const time = ownTicks("time", true);
  const values: NonNullable<uPlot.Axis["values"]> = (...all) => {
    const said = (time.values as (...all: unknown[]) => string[])(...all);
    labels.push(said);
    return said;
  };
  const axes = [{ size: 26, ...time, values }, { show: false }];
  const size = { width: 900, height: 92 };
  const plot = new uPlot(
    { ...size, scales: { x: { time: false } }, series: [{}, { paths: () => null, points: { show: false } }], axes },
    [
      [0, 7200],
      [1, 2],
    ],
  );
  for (const width of [900, 160, 480, 900]) {
    plot.setSize({ width, height: 92 });
    await Promise.resolve(); // uPlot draws a moment later
    const said = labels.at(-1)!;
    const room = { pixels: width, horizontal: true };
    expect(said.length, `${width}: ${said.join(", ")}`).toBeGreaterThan(1);
    const longest = Math.max(...said.map((label) => labelSize(label, room)));
    expect(longest * (said.length - 1), `${width}: ${said.join(", ")}`).toBeLessThanOrEqual(width);
    expect(longest * (said.length - 1), `${width}: ${said.join(", ")}`).toBeGreaterThan(width / 8);
  }
  plot.destroy();
});
