/** The content of a flame graph: the stacks of a profile as a tree, and the positions of its boxes. */

import type { Profile } from "../api/types";

export type Speedscope = Profile["speedscope"];
export type Part = Speedscope["profiles"][number];
export type Frame = Speedscope["shared"]["frames"][number];

/** Boxes that are narrower than this share of the graph are not drawn. */
export const NARROWEST = 1 / 400;

/** A frame, in the context of the frames that led to it. */
export interface Call {
  /** null for the root, which stands for the whole thread. */
  frame: Frame | null;
  parent: Call | null;
  /** Seconds or bytes of this frame, and of what it called. */
  weight: number;
  /** The weight of this frame alone, without the calls that it made. */
  own: number;
  /** Widest first. */
  calls: Call[];
}

/** The stacks of a thread as a tree. Stacks that begin alike share boxes. */
export function callsOf(frames: readonly Frame[], part: Part): Call {
  const root: Call = { frame: null, parent: null, weight: 0, own: 0, calls: [] };
  const known = new Map<Call, Map<number, Call>>();
  part.samples.forEach((stack, i) => {
    const weight = part.weights[i]!;
    let at = root;
    at.weight += weight;
    for (const index of stack) {
      let below = known.get(at);
      if (!below) known.set(at, (below = new Map<number, Call>()));
      let next = below.get(index);
      if (!next) {
        next = { frame: frames[index]!, parent: at, weight: 0, own: 0, calls: [] };
        below.set(index, next);
        at.calls.push(next);
      }
      next.weight += weight;
      at = next;
    }
    at.own += weight;
  });
  for (const call of known.keys()) call.calls.sort((a, b) => b.weight - a.weight);
  return root;
}

export interface Box {
  call: Call;
  depth: number;
  /** As a share of the graph's width. */
  left: number;
  width: number;
}

/** The boxes of a call, as wide as the graph, with those that led to it above and those that it called below. */
export function boxesOf(call: Call): Box[] {
  const above: Box[] = [];
  for (let at = call.parent; at; at = at.parent) above.unshift({ call: at, depth: 0, left: 0, width: 1 });
  above.forEach((box, depth) => (box.depth = depth));
  const found = [...above];
  const add = (one: Call, depth: number, left: number) => {
    const width = one.weight / call.weight;
    if (!(width >= NARROWEST)) return;
    found.push({ call: one, depth, left, width });
    let from = left;
    for (const next of one.calls) {
      add(next, depth + 1, from);
      from += next.weight / call.weight;
    }
  };
  add(call, above.length, 0);
  return found;
}

/** The lines of code with the largest weight of their own, over all paths to them, largest first. */
export function hottest(frames: readonly Frame[], part: Part, count: number): { frame: Frame; own: number }[] {
  const own = new Map<number, number>();
  part.samples.forEach((stack, i) => {
    const last = stack[stack.length - 1];
    if (last !== undefined) own.set(last, (own.get(last) ?? 0) + part.weights[i]!);
  });
  return [...own]
    .sort((a, b) => b[1] - a[1])
    .slice(0, count)
    .map(([index, weight]) => ({ frame: frames[index]!, own: weight }));
}

/** "train.py:41", or nothing if the frame has no place. */
export function place({ file, line }: Frame): string {
  return file ? `${file.replace(/^.*[\\/]/, "")}:${line}` : "";
}

/** The stacks as `flamegraph.pl` and similar tools read them, with weights in microseconds or bytes. */
export function collapsed({ shared, profiles }: Speedscope): string {
  const plain = (name: string) => name.replaceAll(";", ",").replaceAll("\n", " ");
  const names = shared.frames.map((frame) => plain(frame.name) + (frame.file ? ` (${place(frame)})` : ""));
  return profiles
    .flatMap(({ name, unit, samples, weights }) =>
      samples.map((stack, i) => {
        const weight = Math.round(weights[i]! * (unit === "seconds" ? 1e6 : 1));
        return `${[plain(name), ...stack.map((index) => names[index]!)].join(";")} ${weight}\n`;
      }),
    )
    .join("");
}

/** A hue for each file, so that the frames of a library look alike. */
export function hue(file: string): number {
  let hash = 0;
  for (let i = 0; i < file.length; i++) hash = (hash * 31 + file.charCodeAt(i)) | 0;
  return (hash >>> 0) % 360;
}
