import { describe, expect, it } from "vitest";
import { fromColumns } from "./columns";

/** The bytes that the service sends for this head, these y and these x. */
function bytes(head: object, y: number[], x: Int32Array | Float64Array): ArrayBuffer {
  const text = new TextEncoder().encode(JSON.stringify(head));
  const length = Math.ceil((4 + text.length) / 8) * 8 - 4;
  const all = new Uint8Array(4 + length + 8 * y.length + x.byteLength).fill(32);
  new DataView(all.buffer).setUint32(0, length, true);
  all.set(text, 4);
  all.set(new Uint8Array(new Float64Array(y).buffer), 4 + length);
  all.set(new Uint8Array(x.buffer), 4 + length + 8 * y.length);
  return all.buffer;
}

const BEST = { x: [1.5], y: [0.9] };
const SERIES = [
  {
    trial_id: "trl_1",
    number: 1,
    state: "completed",
    best_value: 0.9,
    segments: [
      { ordinal: 1, cause: "start", count: 2 },
      { ordinal: 2, cause: "exploit", count: 3 },
    ],
  },
  { trial_id: "trl_2", number: 2, state: "failed", best_value: null, segments: [] },
  {
    trial_id: "trl_3",
    number: 3,
    state: "running",
    best_value: 1,
    segments: [{ ordinal: 1, cause: "start", count: 1 }],
  },
];

describe("curves as columns", () => {
  it.each([
    ["step", "int32", Int32Array.of(1, 2, 3, 4, 5, 1)],
    ["time", "float64", Float64Array.of(0.5, 1.25, 3, 4, 5, 1)],
  ] as const)("gives each segment its points, over %s", (x, x_type, across) => {
    const head = { metric: "naïve", mode: "max", x, x_type, width: 8, left_out: 3, series: SERIES, best_so_far: BEST };
    const found = fromColumns(bytes(head, [0.1, 0.2, NaN, 0.4, 0.5, 1], across));
    const [first, second] = [Array.from(across).slice(0, 2), Array.from(across).slice(2, 5)];
    expect(found).toEqual({
      metric: "naïve",
      mode: "max",
      x,
      width: 8,
      left_out: 3,
      best_so_far: BEST,
      series: [
        {
          ...SERIES[0],
          segments: [
            { ordinal: 1, cause: "start", x: first, y: [0.1, 0.2] },
            { ordinal: 2, cause: "exploit", x: second, y: [null, 0.4, 0.5] },
          ],
        },
        SERIES[1],
        { ...SERIES[2], segments: [{ ordinal: 1, cause: "start", x: [1], y: [1] }] },
      ],
    });
  });
});
