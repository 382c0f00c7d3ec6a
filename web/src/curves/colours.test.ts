import { describe, expect, it } from "vitest";
import { colourAt, palette, ranks, SHADES, shareOfRank, rankWords } from "./colours";

/** OKLab of a hex color, by the forward formulas. */
function lab(hex: string): [number, number, number] {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const v = parseInt(hex.slice(i, i + 2), 16) / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

/** WCAG's contrast of two colors. */
function contrastOf(a: string, b: string): number {
  const [high, low] = [a, b]
    .map((hex) => {
      const [red, green, blue] = [1, 3, 5].map((i) => {
        const v = parseInt(hex.slice(i, i + 2), 16) / 255;
        return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      }) as [number, number, number];
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
    })
    .sort((x, y) => y - x) as [number, number];
  return high / low;
}

describe("the scale of colours", () => {
  it.each(["light", "dark"] as const)("gets steadily farther from the background towards the best (%s)", (theme) => {
    const lightness = palette(theme).map((hex) => lab(hex)[0]);
    const background = theme === "light" ? 1 : 0.2;
    const contrast = lightness.map((value) => Math.abs(value - background));
    for (let i = 1; i < SHADES; i++) expect(contrast[i]!).toBeGreaterThan(contrast[i - 1]!);
    expect(contrast[SHADES - 1]).toBeGreaterThan(0.55);
  });

  it.each([
    ["light", "#ffffff"],
    ["dark", "#1a1c21"],
  ] as const)("can be seen at its worst end too (%s)", (theme, background) => {
    for (const hex of palette(theme)) expect(contrastOf(hex, background)).toBeGreaterThanOrEqual(3);
    expect(contrastOf(palette(theme)[SHADES - 1]!, background)).toBeGreaterThan(9);
  });

  it.each(["light", "dark"] as const)("has even steps of lightness (%s)", (theme) => {
    // Over four shades each, since one is hardly more than what 8 bits a channel can tell apart.
    const lightness = palette(theme).map((hex) => lab(hex)[0]);
    const steps = lightness.slice(4).map((value, i) => Math.abs(value - lightness[i]!));
    const mean = steps.reduce((a, b) => a + b) / steps.length;
    for (const step of steps) expect(Math.abs(step - mean) / mean).toBeLessThan(0.35);
  });

  it("stays within its ends", () => {
    expect(colourAt(-1, "light")).toBe(colourAt(0, "light"));
    expect(colourAt(7, "dark")).toBe(colourAt(1, "dark"));
  });
});

describe("ranks", () => {
  const trials = [
    [0, 0.5],
    [1, 0.9],
    [2, null],
    [3, 0.5],
    [4, 0.1],
    [5, NaN],
  ].map(([number, best_value]) => ({ number: number!, best_value: best_value ?? null }));

  it("gives equal values the same rank, and no rank to trials without a value", () => {
    expect([...ranks(trials, "max")]).toEqual([
      [1, 1],
      [0, 2],
      [3, 2],
      [4, 4],
    ]);
    expect(ranks(trials, "min").get(4)).toBe(1);
    const constrained = trials.map((trial, i) => ({ ...trial, feasible: i > 0 }));
    expect(ranks(constrained, "max").get(trials[0]!.number)).toBe(ranks(trials, "max").size);
  });

  it("maps ranks to numbers from 1 for the best to 0 for the last", () => {
    expect(shareOfRank(1, 1000)).toBe(1);
    expect(shareOfRank(1000, 1000)).toBeCloseTo(0);
    expect(shareOfRank(10, 1000)).toBeCloseTo(2 / 3);
    expect(shareOfRank(1, 1)).toBe(1);
    expect(shareOfRank(undefined, 5)).toBe(0);
  });
});

describe("a rank in words", () => {
  it("says that it is one of fronts if there are several objectives", () => {
    expect([rankWords(3, false), rankWords(3, false, 27), rankWords(undefined, true)]).toEqual([
      "rank 3",
      "place 3 of 27",
      null,
    ]);
    expect([rankWords(1, true), rankWords(12, true), rankWords(12, true, 40)]).toEqual([
      "on the Pareto front",
      "rank 12 by front",
      "place 12 of 40 by front",
    ]);
  });
});
