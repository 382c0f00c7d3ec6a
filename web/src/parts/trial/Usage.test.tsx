import { describe, expect, it } from "vitest";
import { spark } from "./Usage";

describe("a sparkline", () => {
  it("goes from zero at the bottom to the highest value at the top, across the whole width", () => {
    expect(spark([10, 20, 30], [0, 50, 100], 102, 22)).toBe("M1.0 21.0L51.0 11.0L101.0 1.0");
  });

  it("breaks where a value is missing", () => {
    expect(spark([0, 1, 2, 3], [null, 4, null, 4], 101, 12)).toBe("M34.0 1.0M100.0 1.0");
  });

  it("shows a single sample, and a rank that does nothing", () => {
    expect(spark([5], [7], 102, 22)).toBe("M1.0 1.0h1");
    expect(spark([0, 1], [0, 0], 102, 22)).toBe("M1.0 21.0L101.0 21.0");
  });
});
