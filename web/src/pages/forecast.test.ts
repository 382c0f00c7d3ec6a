import { describe, expect, it } from "vitest";
import { bestFigure, endTitle } from "./forecast";

describe("a forecast", () => {
  const seconds = { expected: 90, low: 60, high: 120 };

  it("says whether its end includes the start of trials", () => {
    expect(endTitle({ seconds, starting: 0 })).not.toContain("start again");
    expect(endTitle({ seconds, starting: 12 })).toContain("It includes 12 s in which trials start again");
  });

  it("shows an interval only if both of its ends are known", () => {
    const best = { expected: 0.0866, low: 0.08, high: 0.0878 };
    expect(bestFigure(best, false, "min").value).toBe("0.08 to 0.0878");
    const open = bestFigure({ ...best, low: 0 }, true, "min");
    expect(open.value).toBe("about 0.0866");
    expect(open.title).toBe("It is 0.0878 at worst. How much better it may become is not known.");
    expect(bestFigure({ expected: 0.985, low: 0.983, high: 1 }, true, "max").title).toMatch(/^It is 0.983 at worst/);
  });
});
