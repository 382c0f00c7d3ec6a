import { describe, expect, it } from "vitest";
import { number } from "../format";
import { drawRungs, leftOutWords } from "./marks";

describe("leftOutWords", () => {
  const shown = { min: 0.25, max: 3 };
  it("names the side, the limit, and the number of points beyond it", () => {
    expect(leftOutWords({ below: 0, above: 12 }, shown, number)).toEqual({
      top: "12 points above 3 not shown",
      bottom: null,
    });
    expect(leftOutWords({ below: 1, above: 0 }, shown, number)).toEqual({
      top: null,
      bottom: "1 point below 0.25 not shown",
    });
  });
});

describe("drawRungs", () => {
  /** The labels of rungs on an axis of 100 pixels, with their left edges; each label is 30 pixels wide. */
  function labels(levels: readonly number[]) {
    const drawn: [string, number][] = [];
    const context = {
      save() {},
      restore() {},
      setLineDash() {},
      beginPath() {},
      moveTo() {},
      lineTo() {},
      stroke() {},
      measureText: () => ({ width: 30 }),
      fillText: (text: string, left: number) => drawn.push([text, left]),
    };
    const x = { range: { min: 0, max: 100 }, log: false, from: 0, to: 100 };
    const y = { range: { min: 0, max: 1 }, log: false, from: 100, to: 0 };
    drawRungs(context as never, levels, { x, y }, "light", "10px sans-serif", true);
    return drawn;
  }

  it("labels a rung at the right edge to the left of its line", () =>
    expect(labels([10, 90])).toEqual([
      ["rung 10", 14.5],
      ["rung 90", 56.5],
    ]));

  it("leaves out a label without room", () => expect(labels([50, 60, 90])).toEqual([["rung 50", 54.5]]));
});
