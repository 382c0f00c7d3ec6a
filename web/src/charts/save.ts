/** Save what a chart shows: its picture as PNG, its numbers as CSV. */

import type { Curves, Series, Trial } from "../api/types";
import { columnOf, type Across } from "../curves/across";

function field(value: unknown): string {
  const text = value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csv(rows: readonly (readonly unknown[])[]): string {
  return rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

/** A row for each point of the curves that are drawn. */
export function curvesCsv(
  curves: Across & Pick<Curves, "metric" | "series">,
  only: ReadonlySet<number> | null,
): string {
  const rows: unknown[][] = [["trial", "segment", columnOf(curves), curves.metric]];
  for (const { number, segments } of curves.series) {
    if (only && !only.has(number)) continue;
    for (const { ordinal, x, y } of segments) x.forEach((at, i) => rows.push([number, ordinal, at, y[i]]));
  }
  return csv(rows);
}

/** The same of trials that have names, since they may belong to several experiments. */
export function comparedCsv(
  names: readonly string[],
  series: readonly Series[],
  metric: string,
  across: Across,
): string {
  const rows: unknown[][] = [["trial", "segment", columnOf(across), metric]];
  series.forEach(({ segments }, i) => {
    for (const one of segments) one.x.forEach((at, k) => rows.push([names[i], one.ordinal, at, one.y[k]]));
  });
  return csv(rows);
}

/** A row for each trial, with a column for each parameter that any of them has and for each metric. */
export function trialsCsv(trials: readonly Trial[], only: ReadonlySet<number> | null): string {
  const shown = trials.filter((trial) => only === null || only.has(trial.number));
  const params = [...new Set(shown.flatMap((trial) => Object.keys(trial.params)))];
  const metrics = [...new Set(shown.flatMap((trial) => Object.keys(trial.last)))];
  return csv([
    ["trial", "state", "best_value", "iteration", ...params, ...metrics.map((name) => `last ${name}`)],
    ...shown.map((trial) => [
      trial.number,
      trial.state,
      trial.best_value,
      trial.iteration,
      ...params.map((name) => trial.params[name]),
      ...metrics.map((name) => trial.last[name]),
    ]),
  ]);
}

export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const STYLES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "font-size",
  "font-family",
  "font-weight",
];

/** The canvases and drawings of an element, over each other as they are on the screen, at twice the resolution. */
export async function png(root: HTMLElement): Promise<Blob> {
  const box = root.getBoundingClientRect();
  const scale = 2;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.ceil(box.width * scale), Math.ceil(box.height * scale)];
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, box.width, box.height);
  for (const part of root.querySelectorAll<HTMLCanvasElement | SVGSVGElement>("canvas, svg")) {
    const own = part.getBoundingClientRect();
    if (own.width === 0 || own.height === 0 || part.closest("button")) continue;
    context.globalAlpha = Number(getComputedStyle(part).opacity);
    const image = part instanceof HTMLCanvasElement ? part : await drawn(part, own);
    context.drawImage(image, own.left - box.left, own.top - box.top, own.width, own.height);
  }
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The picture is too large to be saved.")))),
  );
}

/** An SVG as an image, with the styles that its classes give it. */
async function drawn(svg: SVGSVGElement, { width, height }: DOMRect): Promise<HTMLImageElement> {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const [from, to] = [svg.querySelectorAll<SVGElement>("*"), copy.querySelectorAll<SVGElement>("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of STYLES) to[i]!.style.setProperty(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  return image;
}
