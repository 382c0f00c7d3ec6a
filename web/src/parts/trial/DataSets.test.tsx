import { describe, expect, it } from "vitest";
import { throughput } from "./DataSets";

describe("the throughput of a data set", () => {
  const set = { state: "running", executions: 3, seconds: 12, rows_per_s: 1234.6, blocks_per_s: 0.5 };

  it("is in rows if Ray Data estimates them", () => {
    expect(throughput(set)).toBe("execution 3, running for 12 s: 1235 rows/s");
  });

  it("is in blocks otherwise", () => {
    expect(throughput({ ...set, executions: 1, rows_per_s: null })).toBe("running for 12 s: 0.50 blocks/s");
  });

  it("says that a data set has not been executed yet", () => {
    expect(throughput({ ...set, state: null, seconds: null })).toBe("Not executed yet.");
  });
});
