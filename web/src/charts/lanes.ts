/** The lineage of a population as lanes: a lane for each member, its segments, and the arrows between them. */

import type { Curves } from "../api/types";
import { rankedOf } from "../curves/colours";
import type { SourceOf } from "../live/useExperiment";

export interface Piece {
  trial: number;
  ordinal: number;
  cause: Curves["series"][number]["segments"][number]["cause"];
  /** Iterations. */
  from: number;
  to: number;
  /** The last value that was reported in it; null if there is none. */
  score: number | null;
}

export interface Handover {
  /** The source of the weights, and the segment in which they continued. */
  donor: number;
  donorAt: number;
  recipient: number;
  at: number;
  ordinal: number;
}

export interface Lanes {
  /** Trials in the order of their lanes, the best first. */
  order: number[];
  pieces: Piece[];
  handovers: Handover[];
  end: number;
}

/** Make the lanes from the curves of the objective over steps. */
export function lanesOf(
  { series }: Pick<Curves, "series">,
  source: SourceOf,
  rank: ReadonlyMap<number, number>,
): Lanes {
  const pieces: Piece[] = [];
  const handovers: Handover[] = [];
  let end = 0;
  for (const { number, segments } of series) {
    let before = 0;
    for (const segment of segments) {
      const last = segment.x[segment.x.length - 1];
      if (last === undefined) continue;
      const from =
        segment.cause === "exploit" || segment.cause === "retry"
          ? Math.max(0, segment.x[0]! - 1)
          : Math.min(before, segment.x[0]! - 1);
      const known = segment.y.filter((value) => value !== null);
      pieces.push({
        trial: number,
        ordinal: segment.ordinal,
        cause: segment.cause,
        from,
        to: last,
        score: known[known.length - 1] ?? null,
      });
      const taken = segment.cause === "exploit" ? source(number, segment.ordinal) : undefined;
      if (taken)
        handovers.push({
          donor: taken.trial,
          donorAt: taken.iteration,
          recipient: number,
          at: from,
          ordinal: segment.ordinal,
        });
      before = last;
      end = Math.max(end, last);
    }
  }
  const last = rankedOf(rank) + 1;
  const order = series.filter((one) => one.segments.length > 0).map((one) => one.number);
  order.sort((a, b) => (rank.get(a) ?? last) - (rank.get(b) ?? last) || a - b);
  return { order, pieces, handovers, end };
}

/** The pieces that led to the weights that a trial has now, as "trial.ordinal": its own, its donor's before that, and so on. */
export function ancestry({ pieces }: Pick<Lanes, "pieces">, source: SourceOf, trial: number): Set<string> {
  const found = new Set<string>();
  let [here, upTo]: [number, number] = [trial, Infinity];
  for (;;) {
    const own = pieces
      .filter((piece) => piece.trial === here && piece.ordinal <= upTo)
      .sort((a, b) => b.ordinal - a.ordinal);
    let next: { trial: number; ordinal: number } | null = null;
    for (const piece of own) {
      const key = `${piece.trial}.${piece.ordinal}`;
      if (found.has(key)) return found;
      found.add(key);
      if (piece.cause !== "exploit") continue;
      const taken = source(piece.trial, piece.ordinal);
      if (taken) next = { trial: taken.trial, ordinal: taken.ordinal ?? Infinity };
      break;
    }
    if (next === null) return found;
    [here, upTo] = [next.trial, next.ordinal];
  }
}
