/** Save what a chart shows: its picture as PNG, its numbers as CSV or as a table. */

import type { BestOverTime, Curves, Series, Trial, UsageSeries } from "../api/types";
import { columnOf, type Across } from "../curves/across";
import { own } from "../own";

/** The names of the columns, and then the numbers of a chart. */
export type Rows = readonly (readonly unknown[])[];

function field(value: unknown): string {
  const text = value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csv(rows: Rows): string {
  return rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

/** A row for each point of the curves that are drawn. */
export function curvesRows(curves: Across & Pick<Curves, "metric" | "series">, only: ReadonlySet<number> | null): Rows {
  const rows: unknown[][] = [["trial", "segment", columnOf(curves), curves.metric]];
  for (const { number, segments } of curves.series) {
    if (only && !only.has(number)) continue;
    for (const { ordinal, x, y } of segments) x.forEach((at, i) => rows.push([number, ordinal, at, y[i]]));
  }
  return rows;
}

/**
 * A row for each point of the curves of these trials. A trial has a name, since several experiments may have the same
 * numbers.
 */
export function comparedCurvesRows(
  names: readonly string[],
  series: readonly Series[],
  metric: string,
  across: Across,
): Rows {
  const rows: unknown[][] = [["trial", "segment", columnOf(across), metric]];
  series.forEach(({ segments }, i) => {
    for (const one of segments) one.x.forEach((at, k) => rows.push([names[i], one.ordinal, at, one.y[k]]));
  });
  return rows;
}

/** The improvements of some experiments, and the end of each. `x`: "time" or "trial_time". */
export function comparedBestRows(
  names: readonly string[],
  bests: readonly (BestOverTime | undefined)[],
  metric: string,
  x: string,
): Rows {
  const rows: unknown[][] = [["experiment", `${x}_s`, `best ${metric}`]];
  bests.forEach((best, i) => {
    best?.x.forEach((at, k) => rows.push([names[i], at, best.y[k]]));
    if (best && best.y.length > 0) rows.push([names[i], best.until, best.y[best.y.length - 1]]);
  });
  return rows;
}

/** The samples of what the ranks of a trial used, with the times of each segment since its own start. */
export function usageRows(items: readonly UsageSeries[]): Rows {
  const rows: unknown[][] = [
    ["segment", "rank", "seconds", "cpu_percent", "rss_bytes", "gpu_percent", "gpu_reserved_bytes"],
  ];
  for (const one of items)
    one.x.forEach((at, i) =>
      rows.push([
        one.segment,
        one.rank,
        at,
        one.cpu_percent[i],
        one.rss_bytes[i],
        one.gpu_percent[i],
        one.gpu_reserved_bytes[i],
      ]),
    );
  return rows;
}

/** A row for each trial, with a column for each parameter that any of them has and for each metric. */
export function trialsRows(trials: readonly Trial[], only: ReadonlySet<number> | null): Rows {
  const shown = trials.filter((trial) => only === null || only.has(trial.number));
  const params = [...new Set(shown.flatMap((trial) => Object.keys(trial.params)))];
  const metrics = [...new Set(shown.flatMap((trial) => Object.keys(trial.last)))];
  return [
    ["trial", "state", "best_value", "iteration", ...params, ...metrics.map((name) => `last ${name}`)],
    ...shown.map((trial) => [
      trial.number,
      trial.state,
      trial.best_value,
      trial.iteration,
      ...params.map((name) => own(trial.params, name)),
      ...metrics.map((name) => own(trial.last, name)),
    ]),
  ];
}

export function download(name: string, content: Blob): void {
  const url = URL.createObjectURL(content);
  downloadFrom(url, name);
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Let the browser download a file under this name, or under the one that the service gives it. */
export function downloadFrom(url: string, name = ""): void {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}

const STYLES = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "paint-order",
  "opacity",
  "font-size",
  "font-family",
  "font-weight",
];

/** Draw what an element shows on the screen (canvases, drawings, bars and words), at twice the resolution. */
export async function png(root: HTMLElement): Promise<Blob> {
  const box = root.getBoundingClientRect();
  const scale = 2;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.ceil(box.width * scale), Math.ceil(box.height * scale)];
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, box.width, box.height);
  context.translate(-box.left, -box.top);
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) =>
    node instanceof Element && node.matches("button, select, input, [role=dialog]")
      ? NodeFilter.FILTER_REJECT
      : NodeFilter.FILTER_ACCEPT,
  );
  for (let part = walk.nextNode(); part; part = walk.nextNode()) {
    if (part instanceof Text) drawWords(context, part, root);
    else if (part instanceof HTMLCanvasElement || part instanceof SVGSVGElement) {
      const own = part.getBoundingClientRect();
      if (own.width === 0 || own.height === 0) continue;
      context.globalAlpha = Number(getComputedStyle(part).opacity);
      const image = part instanceof HTMLCanvasElement ? part : await drawn(part, own);
      context.drawImage(image, own.left, own.top, own.width, own.height);
      context.globalAlpha = 1;
    } else if (part instanceof HTMLElement) drawBox(context, part);
  }
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The picture is too large to be saved.")))),
  );
}

/** Draw the background of an element, such as a bar or the color of a legend. */
function drawBox(context: CanvasRenderingContext2D, element: HTMLElement): void {
  const { backgroundColor } = getComputedStyle(element);
  const { left, top, width, height } = element.getBoundingClientRect();
  if (width < 1 || height < 1 || /^rgba\(.*, 0\)$|^transparent$/.test(backgroundColor)) return;
  context.fillStyle = backgroundColor;
  context.fillRect(left, top, width, height);
}

/** Draw the words of a text outside drawings where they are, except those that are scrolled out of sight. */
function drawWords(context: CanvasRenderingContext2D, text: Text, root: HTMLElement): void {
  const parent = text.parentElement!;
  if (parent.closest("svg") || !parent.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return;
  const style = getComputedStyle(parent);
  context.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  context.fillStyle = style.color;
  context.textBaseline = "middle";
  const range = document.createRange();
  for (const { index, 0: word } of text.data.matchAll(/\S+/g)) {
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    const own = range.getBoundingClientRect();
    if (own.width > 1 && isInSight(own, parent, root)) context.fillText(word, own.left, own.top + own.height / 2);
  }
}

function isInSight(own: DOMRect, parent: Element, root: Element): boolean {
  for (let at: Element | null = parent; at && root.contains(at); at = at.parentElement) {
    if (getComputedStyle(at).overflowY === "visible") continue;
    const around = at.getBoundingClientRect();
    if (own.bottom > around.bottom + 2 || own.top < around.top - 2 || own.left > around.right) return false;
  }
  return true;
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
