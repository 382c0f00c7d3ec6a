/** Curves as the service sends them to the page: their points in two arrays of numbers, which are read in a few milliseconds. */

import type { Curves, CurveSegment, Series } from "./types";

export const COLUMNS = "application/vnd.tuner.curves";

interface Head extends Omit<Curves, "series"> {
  x_type: "int32" | "float64";
  series: (Omit<Series, "segments"> & { segments: (Omit<CurveSegment, "x" | "y"> & { count: number })[] })[];
}

/** Decode these bytes. The OpenAPI document describes their layout. */
export function fromColumns(bytes: ArrayBuffer): Curves {
  const length = new DataView(bytes).getUint32(0, true);
  const { x_type, series, ...rest } = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as Head;
  let total = 0;
  for (const { segments } of series) for (const { count } of segments) total += count;
  const y = new Float64Array(bytes, 4 + length, total);
  const behind = 4 + length + 8 * total;
  const x = x_type === "int32" ? new Int32Array(bytes, behind, total) : new Float64Array(bytes, behind, total);
  let from = 0;
  const next = (values: Float64Array | Int32Array, count: number) => Array.from(values.subarray(from, from + count));
  return {
    ...rest,
    series: series.map(({ segments, ...one }) => ({
      ...one,
      segments: segments.map(({ count, ...segment }) => {
        const read = { ...segment, x: next(x, count), y: withGaps(next(y, count)) };
        from += count;
        return read;
      }),
    })),
  };
}

function withGaps(values: number[]): (number | null)[] {
  return values.some(Number.isNaN) ? values.map((value) => (Number.isNaN(value) ? null : value)) : values;
}
