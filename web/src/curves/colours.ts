/**
 * Colors of curves by rank. The scale is a path through OKLCH with evenly falling lightness, so equal steps in rank look
 * like equal steps; the best end is the one that stands out most from the background, dark on light and light on dark. The
 * worst end has a contrast of 3 to 1 with it, as WCAG requires for lines.
 */

import type { Expected } from "./expected";

export type Theme = "light" | "dark";

interface Stop {
  lightness: number;
  chroma: number;
  hue: number;
}

const WORST_TO_BEST: Record<Theme, [Stop, Stop, Stop]> = {
  light: [
    { lightness: 0.66, chroma: 0.09, hue: 105 },
    { lightness: 0.5, chroma: 0.13, hue: 190 },
    { lightness: 0.34, chroma: 0.21, hue: 285 },
  ],
  dark: [
    { lightness: 0.535, chroma: 0.12, hue: 285 },
    { lightness: 0.735, chroma: 0.12, hue: 200 },
    { lightness: 0.935, chroma: 0.17, hue: 108 },
  ],
};

/** The number of shades. Curves of one shade are drawn with one stroke. */
export const SHADES = 64;

/** Share in [0, 1], 1 for the best, as an sRGB color. */
export function colourAt(share: number, theme: Theme): string {
  const [worst, middle, best] = WORST_TO_BEST[theme];
  const t = Math.min(1, Math.max(0, share)) * 2;
  return t <= 1 ? toHex(between(worst, middle, t)) : toHex(between(middle, best, t - 1));
}

export function shade(share: number): number {
  return Math.round(Math.min(1, Math.max(0, share)) * (SHADES - 1));
}

const palettes = new Map<Theme, string[]>();

export function palette(theme: Theme): string[] {
  let colours = palettes.get(theme);
  if (!colours) {
    colours = Array.from({ length: SHADES }, (_, i) => colourAt(i / (SHADES - 1), theme));
    palettes.set(theme, colours);
  }
  return colours;
}

export interface Ranked {
  number: number;
  best_value: number | null;
  feasible?: boolean | null;
  repeat_of?: number | null;
}

/**
 * Return the 1-based rank of each trial by best value, or after repeats by the expected value of its configuration. Equal values
 * share a rank, and trials without a value have none. Trials that violate the constraints come after all others.
 */
export function ranks(
  trials: readonly Ranked[],
  mode: "min" | "max",
  expected: Expected | null = null,
): Map<number, number> {
  const sign = mode === "max" ? -1 : 1;
  const judged = (t: Ranked) => ({ ...t, repeat_of: t.repeat_of ?? null });
  const valued = trials.flatMap((t) => {
    const value = expected ? expected.value(judged(t)) : t.best_value;
    const outside = Number(t.feasible === false || (expected?.dropped(judged(t)) ?? false));
    return value !== null && Number.isFinite(value) ? [{ number: t.number, value, outside }] : [];
  });
  valued.sort((a, b) => a.outside - b.outside || sign * (a.value - b.value) || a.number - b.number);
  const rank = new Map<number, number>();
  valued.forEach((trial, i) => {
    const before = valued[i - 1];
    const tie = before && before.value === trial.value && before.outside === trial.outside;
    rank.set(trial.number, tie ? rank.get(before.number)! : i + 1);
  });
  return rank;
}

const counted = new WeakMap<ReadonlyMap<number, number>, number>();

/** Return how many trials have a rank. If only a sample is here, the trials outside it count, too. */
export function rankedOf(rank: ReadonlyMap<number, number>): number {
  let found = counted.get(rank);
  if (found === undefined) {
    found = rank.size;
    for (const place of rank.values()) if (place > found) found = place;
    counted.set(rank, found);
  }
  return found;
}

/**
 * Return a rank in words, such as "rank 3" or, given how many trials have one, "place 3 of 27"; null without a rank. `byFront`: the
 * ranks are those of fronts.
 */
export function rankWords(rank: number | undefined, byFront: boolean, of?: number): string | null {
  if (rank === undefined) return null;
  if (byFront && rank === 1) return "on the Pareto front";
  const words = of === undefined ? `rank ${rank}` : `place ${rank} of ${of}`;
  return byFront ? `${words} by front` : words;
}

/** Colors for picked trials, in the order in which they were picked: Okabe and Ito's, which color-blind people can tell apart. */
const IDENTITY: Record<Theme, readonly string[]> = {
  light: ["#d55e00", "#0072b2", "#00875f", "#b8559a", "#8a6d00", "#3a87b8", "#7a3b00", "#5b3fa8", "#b00040", "#3d3d3d"],
  dark: ["#ff8c42", "#56b4e9", "#2fd0a5", "#e79ccb", "#f0e442", "#9ad0ff", "#d9a066", "#b9a3ff", "#ff7a9c", "#d0d0d0"],
};

/** The maximum number of trials that can be picked, each with a color of its own. */
export const MOST_PICKED = 10;

export function identityColour(nth: number, theme: Theme): string {
  return IDENTITY[theme][nth % MOST_PICKED]!;
}

/** Map rank 1 of n to 1, and rank n to 0. Each doubling of the rank is an equal step down, so that the best can be told apart. */
export function shareOfRank(rank: number | undefined, n: number): number {
  if (rank === undefined) return 0;
  return n <= 1 ? 1 : 1 - Math.log(rank) / Math.log(n);
}

function between(a: Stop, b: Stop, t: number): Stop {
  return {
    lightness: a.lightness + (b.lightness - a.lightness) * t,
    chroma: a.chroma + (b.chroma - a.chroma) * t,
    hue: a.hue + (b.hue - a.hue) * t,
  };
}

/** Björn Ottosson's OKLab, https://bottosson.github.io/posts/oklab/; what is out of gamut loses chroma until it fits. */
function toHex(stop: Stop): string {
  let chroma = stop.chroma;
  let rgb = toLinear({ ...stop, chroma });
  while (chroma > 0 && rgb.some((v) => v < -1e-4 || v > 1 + 1e-4)) {
    chroma = Math.max(0, chroma - 0.005);
    rgb = toLinear({ ...stop, chroma });
  }
  return `#${rgb
    .map((v) =>
      Math.round(255 * encode(Math.min(1, Math.max(0, v))))
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}

function toLinear({ lightness, chroma, hue }: Stop): [number, number, number] {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

function encode(v: number): number {
  return v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055;
}
