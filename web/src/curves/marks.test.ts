import { describe, expect, it } from "vitest";
import { number } from "../format";
import { leftOutWords } from "./marks";

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
