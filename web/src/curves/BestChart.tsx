import { useComputedColorScheme } from "@mantine/core";
import { useLayoutEffect, useRef } from "react";
import uPlot from "uplot";
import type { BestSoFar } from "../api/types";
import { metric as written } from "../format";
import { colourAt } from "./colours";
import { ownTicks } from "./axes";
import { widthFor } from "./ticks";
import { useResizeForPrint } from "../print";

interface BestChartProps {
  best: BestSoFar;
  /** The title of the value. */
  label: string;
  /** Seconds since the start up to which the last best value holds. */
  until: number | null;
  height: number;
}

/** Draw the best value so far over time, as steps. */
export function BestChart({ best, label, until, height }: BestChartProps) {
  const root = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useComputedColorScheme("light");

  useLayoutEffect(() => {
    const dark = theme === "dark";
    const colour = colourAt(1, theme);
    const font = `11px ${getComputedStyle(root.current!).fontFamily || "sans-serif"}`;
    const axis = {
      stroke: dark ? "#9aa3b2" : "#5c6470",
      font,
      grid: { stroke: dark ? "rgba(255,255,255,0.07)" : "rgba(20,30,50,0.07)", width: 1 },
      ticks: { show: false },
    };
    const made = new uPlot(
      {
        width: Math.max(160, root.current!.clientWidth),
        height,
        padding: [10, 30, 0, 0],
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false } },
        series: [{}, { stroke: colour, width: 2, paths: uPlot.paths.stepped!({ align: 1 }), points: { show: false } }],
        axes: [
          { ...axis, size: 26, gap: 5, ...ownTicks("time", true) },
          { ...axis, size: (_, labels) => widthFor(labels), gap: 6, ...ownTicks("linear", false) },
        ],
      },
      [[], []],
      root.current!,
    );
    plot.current = made;
    const observer = new ResizeObserver(([entry]) =>
      made.setSize({ width: Math.floor(entry!.contentRect.width), height }),
    );
    observer.observe(root.current!);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [theme, height]);

  useLayoutEffect(() => {
    const last = best.x.length - 1;
    const extend = last >= 0 && until !== null && until > best.x[last]!;
    plot.current?.setData([extend ? [...best.x, until] : best.x, extend ? [...best.y, best.y[last]!] : best.y]);
  }, [best, until, theme, height]);

  useResizeForPrint(() => plot.current?.setSize({ width: root.current!.clientWidth, height }));

  const value = best.y[best.y.length - 1];
  return (
    <div ref={root} style={{ height }} role="img" aria-label={`${label} so far over time, now ${written(value)}`} />
  );
}
