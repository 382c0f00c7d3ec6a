import { duration } from "../format";

const [MINUTE, HOUR, DAY] = [60, 3600, 86_400];

/** Distances between ticks of an axis in seconds that people can count in. */
export const TIME_STEPS = [
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30,
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 7, 14, 30].map((n) => n * DAY),
];

export function timeTick(seconds: number): string {
  if (seconds === 0) return "0";
  return seconds < 10 ? `${Number(seconds.toPrecision(3))} s` : duration(seconds).replace(" 0 min", "").replace(" 0 h", "");
}
