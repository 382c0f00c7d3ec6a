/**
 * Apply the service's changes to what the page shows: rows replace rows, and points are appended. Nothing is computed here, so
 * the page cannot disagree with the service. The functions are pure, and only what has changed becomes a new object.
 *
 * A view may already contain a change: a row then replaces an equal one, and a known point is skipped. So an answer and the
 * stream need not match exactly.
 */

import type {
  BestSoFar,
  Changes,
  CurveSegment,
  Curves,
  Decision,
  Experiment,
  Point,
  SegmentItem,
  Series,
  Trial,
} from "../api/types";
import { POINTS } from "../api/sizes";
import type { Across } from "../curves/across";
import { own } from "../own";

/** Return the newer version of an experiment: the one shown, or the one received. A response may have overtaken the stream. */
export function withExperiment(shown: Experiment | undefined, came: Experiment): Experiment {
  if (!shown) return came;
  const ahead = shown.last_event_seq - came.last_event_seq || shown.revision - came.revision;
  return ahead > 0 ? shown : came;
}

/** Trials by number, as the list of trials gives them. */
export function withTrials(trials: readonly Trial[], changes: Pick<Changes, "trials">): readonly Trial[] {
  return replaced(
    trials,
    changes.trials,
    (trial) => trial.number,
    (a, b) => a.number - b.number,
  );
}

/** The trials that charts show: all of them or, if there are very many, the best and a spread of the others. */
export interface Sample {
  /** Sorted by number. */
  items: readonly Trial[];
  complete: boolean;
  /** The rank of each item among all trials, as the service last reported it; null if all trials are here. */
  places: ReadonlyMap<number, number> | null;
  /** With several objectives, the front of each item among all trials, as the service last reported it; null if all trials are here. */
  fronts: ReadonlyMap<number, number> | null;
  total: number;
  /** Iterations that the completed and stopped trials had trained when this was read, repeated ones included. */
  trained: number | null;
}

/** Once there are more trials than this, the sample takes no further ones. */
const MOST = 2000;

export function withSample(sample: Sample, changes: Pick<Changes, "trials">): Sample {
  const { complete } = sample;
  const known = complete ? null : new Set(sample.items.map((trial) => trial.number));
  const own = known ? changes.trials.filter((trial) => known.has(trial.number)) : changes.trials;
  const items = withTrials(sample.items, { trials: own });
  if (items === sample.items) return sample;
  return { ...sample, items, complete: complete && items.length <= MOST, total: Math.max(sample.total, items.length) };
}

/** A page of the table. */
export interface Rows {
  items: readonly Trial[];
  total: number;
  next_page_token: string | null;
  /** With several objectives, the front of each item, as the service last reported it; null for an item on none. */
  fronts: readonly (number | null)[];
}

/** Return the front of each trial that is on one, by number, as the service reported it. Later lists override earlier ones. */
export function frontsIn(lists: readonly Pick<Rows, "items" | "fronts">[]): ReadonlyMap<number, number> {
  const found = new Map<number, number>();
  for (const { items, fronts } of lists) {
    items.forEach(({ number }, i) => {
      const front = fronts[i];
      if (typeof front === "number") found.set(number, front);
      else found.delete(number);
    });
  }
  return found;
}

/** Return the rows of all pages, each once: a trial that has moved in the order while the pages were read is on two of them. */
export function rowsIn(pages: readonly Pick<Rows, "items">[]): readonly Trial[] {
  return [...new Map(pages.flatMap(({ items }) => items).map((trial) => [trial.number, trial])).values()];
}

/** Replace the rows that have changed. Only the service knows which rows belong here, and in which order. */
export function withRows(pages: Rows[], changes: Pick<Changes, "trials">): Rows[] {
  const fresh = new Map(changes.trials.map((trial) => [trial.number, trial]));
  return pages.map((page) =>
    page.items.some((trial) => fresh.has(trial.number))
      ? { ...page, items: page.items.map((trial) => fresh.get(trial.number) ?? trial) }
      : page,
  );
}

/** Merge consecutive changes into one: the newest version of each row, and all points. */
export function merged(changes: readonly Changes[]): Changes {
  const last = changes[changes.length - 1]!;
  if (changes.length === 1) return last;
  const newest = <Row>(rows: readonly Row[], keyOf: (row: Row) => unknown): Row[] => [
    ...new Map(rows.map((row) => [keyOf(row), row])).values(),
  ];
  return {
    ...last,
    since: changes[0]!.since,
    experiment: changes.findLast((one) => one.experiment !== null)?.experiment ?? null,
    trials: newest(
      changes.flatMap((one) => one.trials),
      (trial) => trial.number,
    ),
    segments: newest(
      changes.flatMap((one) => one.segments),
      (one) => `${one.trial_number}.${one.ordinal}`,
    ),
    decisions: newest(
      changes.flatMap((one) => one.decisions),
      (one) => one.seq,
    ),
    points: changes.flatMap((one) => one.points),
    best: changes.flatMap((one) => one.best),
  };
}

/** Decisions, newest first. Changes of decisions older than those in the list are left out: they belong to pages not read yet. */
export function withDecisions(
  decisions: readonly Decision[],
  changes: Pick<Changes, "decisions">,
  complete: boolean,
): readonly Decision[] {
  const oldest = complete ? -1 : (decisions[decisions.length - 1]?.seq ?? -1);
  const rows = changes.decisions.filter((decision) => decision.seq >= oldest);
  return replaced(
    decisions,
    rows,
    (decision) => decision.seq,
    (a, b) => b.seq - a.seq,
  );
}

/** Segments in the order in which they were created. */
export function withSegments(
  segments: readonly SegmentItem[],
  changes: Pick<Changes, "segments">,
): readonly SegmentItem[] {
  return replaced(segments, changes.segments, (one) => `${one.trial_number}.${one.ordinal}`);
}

function replaced<Row, Key>(
  rows: readonly Row[],
  changed: readonly Row[],
  keyOf: (row: Row) => Key,
  order?: (a: Row, b: Row) => number,
): readonly Row[] {
  if (changed.length === 0) return rows;
  const fresh = new Map(changed.map((row) => [keyOf(row), row]));
  const next = rows.map((row) => {
    const key = keyOf(row);
    const found = fresh.get(key);
    fresh.delete(key);
    return found ?? row;
  });
  if (fresh.size === 0) return next;
  next.push(...fresh.values());
  return order ? next.sort(order) : next;
}

/** Curves with the reported points appended: a report adds one point to one segment, the others stay the same objects. */
export function withCurves(curves: Curves, changes: Pick<Changes, "trials" | "points" | "best">): Curves {
  const at = new Map(curves.series.map((series, i) => [series.number, i]));
  let list: Series[] | null = null;
  const put = (number: number, next: Series) => {
    list ??= [...curves.series];
    const i = at.get(number);
    if (i !== undefined) {
      list[i] = next;
      return;
    }
    at.set(number, list.length);
    list.push(next);
  };
  const known = (number: number): Series | undefined => {
    const i = at.get(number);
    return i === undefined ? undefined : (list ?? curves.series)[i];
  };
  for (const { id, number, state, best_value } of changes.trials) {
    const old = known(number);
    // If there are very many trials, only the best are drawn. A report does not add a trial to them.
    if (!old && curves.left_out > 0) continue;
    if (old?.state === state && old.best_value === best_value) continue;
    put(number, old ? { ...old, state, best_value } : { trial_id: id, number, state, best_value, segments: [] });
  }
  for (const point of changes.points) {
    const old = known(point.trial_number);
    const segments = old && withPoint(old.segments, point, curves);
    if (old && segments && segments !== old.segments) put(point.trial_number, { ...old, segments });
  }
  const best = withBest(curves.best_so_far, curves.metric, changes);
  return list === null && best === curves.best_so_far
    ? curves
    : { ...curves, series: list ?? curves.series, best_so_far: best };
}

/** A curve with more points than this has grown far beyond the resolution of a screen. */
const LONGEST = 5 * POINTS;

/**
 * Return true if curves that are kept up to date should be read again now and then: only the service knows which trials belong to a
 * part of them, and the reports of a long search are too many to draw each of them.
 */
export function outgrow({ left_out, series }: Pick<Curves, "left_out" | "series">): boolean {
  if (left_out > 0 || series.length > MOST) return true;
  return series.some(({ segments }) => segments.reduce((points, { x }) => points + x.length, 0) > LONGEST);
}

/** Return where the report is on the axis; null if it has no place there. */
function placeOf(point: Point, { x, x_metric }: Across): number | null {
  switch (x) {
    case "step":
      return point.iteration;
    case "user_step":
      return point.step;
    case "time":
      return point.seconds;
    case "trial_time":
      return point.trial_seconds;
    case "metric":
      return own(point.metrics, x_metric ?? "") ?? null;
  }
}

function withPoint(segments: CurveSegment[], point: Point, curves: Across & Pick<Curves, "metric">): CurveSegment[] {
  const { metric } = curves;
  if (!Object.hasOwn(point.metrics, metric)) return segments;
  const x = placeOf(point, curves);
  if (x === null) return segments;
  const y = point.metrics[metric] ?? null;
  const i = segments.findIndex((segment) => segment.ordinal === point.segment);
  const segment = segments[i];
  if (!segment)
    return [
      ...segments,
      { ordinal: point.segment, cause: point.cause, last_iteration: point.iteration, x: [x], y: [y] },
    ].sort((a, b) => a.ordinal - b.ordinal);
  if (point.iteration <= segment.last_iteration) return segments;
  const copy = [...segments];
  copy[i] = { ...segment, last_iteration: point.iteration, x: [...segment.x, x], y: [...segment.y, y] };
  return copy;
}

function withBest(best: BestSoFar, metric: string, changes: Pick<Changes, "best">): BestSoFar {
  let found = best;
  for (const { seconds, value, ...one } of changes.best) {
    if (one.metric !== metric || isThere(found, seconds, value)) continue;
    // The clocks of nodes differ: like the service, put an improvement no earlier than the one before.
    const last = found.x[found.x.length - 1] ?? -Infinity;
    found = { x: [...found.x, Math.max(last, seconds)], y: [...found.y, value] };
  }
  return found;
}

function isThere({ x, y }: BestSoFar, seconds: number, value: number): boolean {
  for (let i = x.length - 1; i >= 0 && x[i]! >= seconds; i--) if (y[i] === value) return true;
  return false;
}
