/** The lines of a trial's logs: split from the service's response and numbered, and the first error among them. */

import type { LogPart } from "../../api/types";

/** A line, or the heading above the lines of one rank. */
export interface Line {
  /** The line's position, from 1, among those read of its rank and segment; 0 for a heading. */
  number: number;
  rank: number;
  text: string;
  heading: boolean;
}

export function linesOf(parts: readonly Pick<LogPart, "rank" | "stream" | "text">[]): Line[] {
  return parts.flatMap(({ rank, stream, text }) => {
    if (text === "") return [];
    const lines = text.replace(/\n$/, "").split("\n");
    const heading = {
      number: 0,
      rank,
      text: `rank ${rank} · ${stream} · ${lines.length} ${lines.length === 1 ? "line" : "lines"}`,
      heading: true,
    };
    return [heading, ...lines.map((line, i) => ({ number: i + 1, rank, text: shown(line), heading: false }))];
  });
}

/** Return what a terminal would show of a line: the last state of a progress bar, and no color codes. */
function shown(line: string): string {
  // oxlint-disable-next-line no-control-regex
  const plain = line.replace(/\u001b\[[0-9;]*[A-Za-z]/g, "").replace(/\r+$/, "");
  return plain.slice(plain.lastIndexOf("\r") + 1);
}

const ERROR =
  /^Traceback \(most recent call last\)|^\s*(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)|\b(?:ERROR|FATAL|CRITICAL)\b|^Fatal Python error|out of memory/;

/** The index of the first line that reports an error, at or after `from`; -1 if there is none. */
export function errorAt(lines: readonly Line[], from = 0): number {
  for (let i = Math.max(0, from); i < lines.length; i++) {
    const line = lines[i]!;
    if (!line.heading && ERROR.test(line.text)) return i;
  }
  return -1;
}
