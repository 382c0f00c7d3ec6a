/** The lineage of a population as lanes: a lane for each member, its segments, and the arrows between them. */

import { asNumber } from "../api/exact";
import type { Curves, Params, Trial } from "../api/types";
import { rankedOf } from "../curves/colours";
import type { SourceOf } from "../live/useExperiment";
import { own } from "../own";

export interface Piece {
  trial: number;
  ordinal: number;
  cause: Curves["series"][number]["segments"][number]["cause"];
  /** Iterations. */
  from: number;
  to: number;
  /** The iteration up to which the trial kept it; less than `to` if the trial went back to an earlier iteration. */
  kept: number;
  /** The last value that was reported in it; null if there is none. */
  score: number | null;
  /** The configuration that it trained with; null until it is known. */
  params: Params | null;
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

/** Make the lanes from the curves of the objective over steps, and from the configurations of the segments. */
export function lanesOf(
  { series }: Pick<Curves, "series">,
  source: SourceOf,
  rank: ReadonlyMap<number, number>,
  configured: readonly { trial_number: number; ordinal: number; params: Params }[] = [],
): Lanes {
  const params = new Map(configured.map((one) => [`${one.trial_number}.${one.ordinal}`, one.params]));
  const pieces: Piece[] = [];
  const handovers: Handover[] = [];
  let end = 0;
  for (const { number, segments } of series) {
    const first = pieces.length;
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
        kept: last,
        score: known[known.length - 1] ?? null,
        params: params.get(`${number}.${segment.ordinal}`) ?? null,
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
    let least = Infinity;
    for (const piece of pieces.slice(first).reverse()) {
      piece.kept = Math.max(piece.from, Math.min(piece.to, least));
      least = Math.min(least, piece.from);
    }
  }
  const last = rankedOf(rank) + 1;
  const order = series.filter((one) => one.segments.length > 0).map((one) => one.number);
  order.sort((a, b) => (rank.get(a) ?? last) - (rank.get(b) ?? last) || a - b);
  return { order, pieces, handovers, end };
}

/**
 * Return a place for each arrow, from 0 on, as "recipient.ordinal" -> place. Arrows of the same iteration that pass the same lanes get
 * different places, the shorter ones the inner places, so that they can be drawn beside each other. `row`: trial -> its lane.
 */
export function placesOf(handovers: readonly Handover[], row: ReadonlyMap<number, number>): Map<string, number> {
  const found = new Map<string, number>();
  const taken = new Map<number, { place: number; top: number; bottom: number }[]>();
  const arrows = handovers.flatMap((one) => {
    const [from, to] = [row.get(one.donor), row.get(one.recipient)];
    return from === undefined || to === undefined
      ? []
      : [{ ...one, top: Math.min(from, to), bottom: Math.max(from, to) }];
  });
  arrows.sort((a, b) => a.bottom - a.top - (b.bottom - b.top) || a.top - b.top || a.recipient - b.recipient);
  for (const { at, recipient, ordinal, top, bottom } of arrows) {
    const others = taken.get(at) ?? [];
    const used = new Set(others.filter((one) => one.top < bottom && top < one.bottom).map((one) => one.place));
    let place = 0;
    while (used.has(place)) place++;
    taken.set(at, [...others, { place, top, bottom }]);
    found.set(`${recipient}.${ordinal}`, place);
  }
  return found;
}

/**
 * Return the segments that led to a trial's current weights: the trial's own segments, before them its donor's, and so on. Each
 * "trial.ordinal" maps to the last iteration of the segment that is part of these weights.
 */
export function ancestry({ pieces }: Pick<Lanes, "pieces">, source: SourceOf, trial: number): Map<string, number> {
  const found = new Map<string, number>();
  let [here, upTo, fork]: [number, number, number] = [trial, Infinity, Infinity];
  for (;;) {
    const own = pieces
      .filter((piece) => piece.trial === here && piece.ordinal <= upTo)
      .sort((a, b) => b.ordinal - a.ordinal);
    let next: { trial: number; ordinal: number; iteration: number } | null = null;
    for (const piece of own) {
      const key = `${piece.trial}.${piece.ordinal}`;
      if (found.has(key)) return found;
      found.set(key, Math.min(piece.kept, fork));
      if (piece.cause !== "exploit") continue;
      const taken = source(piece.trial, piece.ordinal);
      if (taken) next = { trial: taken.trial, ordinal: taken.ordinal ?? Infinity, iteration: taken.iteration };
      break;
    }
    if (next === null) return found;
    [here, upTo, fork] = [next.trial, next.ordinal, next.iteration];
  }
}

/** A part of a piece as it is drawn. */
export interface Part {
  from: number;
  to: number;
  /** True if the trial went back to an earlier iteration afterwards. */
  given: boolean;
  strong: boolean;
}

/** Split a piece into its parts: kept, discarded, and those that led to the highlighted weights. */
export function partsOf(piece: Piece, chain: ReadonlyMap<string, number> | null): Part[] {
  const upTo = chain === null ? Infinity : (chain.get(`${piece.trial}.${piece.ordinal}`) ?? -Infinity);
  const { from, to, kept } = piece;
  const cuts = [from, ...[kept, upTo].filter((at) => at > from && at < to).sort((a, b) => a - b), to];
  return cuts.slice(1).flatMap((end, i) => {
    const start = cuts[i]!;
    return end > start ? [{ from: start, to: end, given: start >= kept, strong: start < upTo }] : [];
  });
}

/** The meaning of the colors of pieces. `share` is a position on the color scale; null for a piece without a value. */
export interface Shades {
  share: (piece: Pick<Piece, "score" | "params">) => number | null;
  /** The values at both ends of the scale, or all values with their places on it. */
  ends: [number, number] | null;
  log?: boolean;
  values: [string, number][];
}

/** Return a trial's position on the color scale, by its best value or its parameters, for marks beside the lanes. */
export function shareOfTrial(
  { share }: Shades,
  { best_value, params }: Pick<Trial, "best_value" | "params">,
): number | null {
  return share({ score: best_value, params });
}

/** If the largest value is at least this many times the smallest, scores are shaded on a log scale. */
const DECADES = 10;

/** Shade the pieces by their last value: 1 for the best. */
export function shadesOfScores(pieces: readonly Piece[], mode: "min" | "max"): Shades {
  const known = pieces.flatMap(({ score }) => (score !== null && Number.isFinite(score) ? [score] : []));
  if (known.length === 0) return { share: () => null, ends: null, values: [] };
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const log = low > 0 && high / low >= DECADES;
  const place = placeBetween(low, high, log);
  return {
    share: ({ score }) => {
      if (score === null) return null;
      if (!Number.isFinite(score)) return 0;
      return mode === "max" || low === high ? place(score) : 1 - place(score);
    },
    ends: mode === "max" ? [low, high] : [high, low],
    log,
    values: [],
  };
}

/** Return the function that maps a value to its place between two others, from 0 to 1; 1 if they are equal. */
function placeBetween(low: number, high: number, log: boolean): (value: number) => number {
  const scale = log ? Math.log : (value: number) => value;
  const width = scale(high) - scale(low);
  return (value) => (width > 0 ? (scale(value) - scale(low)) / width : 1);
}

/**
 * Shade the pieces by a parameter: numbers by their size, other values by name. `logarithmic` tells the scale of the search space;
 * without it, the scale is a log scale if the values span a decade.
 */
export function shadesOfParam(pieces: readonly Piece[], name: string, logarithmic?: boolean): Shades {
  const of = ({ params }: Pick<Piece, "params">): unknown => asNumber(own(params ?? {}, name));
  const known = pieces.map(of).filter((value) => value !== undefined);
  const numbers = known.filter((value): value is number => typeof value === "number");
  if (numbers.length > 0 && numbers.length === known.length) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const log = low > 0 && (logarithmic ?? high / low >= 10);
    const place = placeBetween(low, high, log);
    const share = (value: number) => (low === high ? 0.5 : place(value));
    return {
      share: (piece) => (typeof of(piece) === "number" ? share(of(piece) as number) : null),
      ends: [low, high],
      log,
      values: [],
    };
  }
  const names = [...new Set(known.map(String))].sort();
  const place = new Map(names.map((one, i) => [one, names.length < 2 ? 0.5 : i / (names.length - 1)]));
  return { share: (piece) => place.get(String(of(piece))) ?? null, ends: null, values: [...place] };
}
