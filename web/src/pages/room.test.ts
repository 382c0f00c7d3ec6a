import { describe, expect, it } from "vitest";
import type { DryRun, Scaling } from "../api/types";
import { bundleOf } from "./held";
import { askedWords, costWords, reachWords, roomWords, type Room } from "./room";

const scaling = (num_workers: number, resources_per_worker = {}, use_gpu = false) =>
  ({ num_workers, resources_per_worker, use_gpu }) as Scaling;
const cluster = (...nodes: [number, number][]) =>
  ({ nodes: nodes.map(([cpus, gpus]) => ({ cpus, gpus })), may_join: [] }) as unknown as Room;
const growing = (there: Room, count: number, cpus: number, gpus = 0): Room => ({
  ...there,
  may_join: [{ count, cpus, gpus }],
});

describe("the room for a trial", () => {
  it("follows from what each worker holds", () => {
    expect(bundleOf(scaling(2))).toEqual({ CPU: 1 });
    expect(bundleOf(scaling(2, { CPU: 4 }, true))).toEqual({ CPU: 4, GPU: 1 });
    expect(askedWords(4, { CPU: 0.5 })).toBe("4 × 0.5 CPU");
    expect(askedWords(2, { CPU: 4, GPU: 1 })).toBe("2 × 1 GPU, 4 CPU");
    expect(askedWords(1, { CPU: 0 })).toBe("1 × no CPU");
  });

  it("counts whole workers on each node", () => {
    expect(roomWords(scaling(2), cluster([4, 0]))).toBe("for 2 trials at once, if nothing else runs");
    expect(roomWords(scaling(2, { CPU: 3 }), cluster([4, 0], [4, 0]))).toBe(
      "for 1 trial at once, if nothing else runs",
    );
    expect(roomWords(scaling(2, {}, true), cluster([16, 1]))).toBe("none: the cluster has room for 1 of its 2 workers");
    expect(roomWords(scaling(3, { CPU: 0.1 }), cluster([0.3, 0]))).toBe("for 1 trial at once, if nothing else runs");
    expect(roomWords(scaling(1, { CPU: 0 }), cluster([1, 0]))).toBe("for any number of trials");
  });

  it("counts nodes that may still join separately", () => {
    expect(roomWords(scaling(2), growing(cluster([4, 0]), 3, 4))).toBe(
      "for 2 trials at once, if nothing else runs, and for 8 with the nodes that may still join",
    );
    expect(roomWords(scaling(1, {}, true), growing(cluster([4, 0]), 1, 8, 1))).toBe(
      "none on the present nodes; for 1 trial at once with the nodes that may still join",
    );
    expect(roomWords(scaling(8, { CPU: 4 }), growing(cluster([4, 0]), 2, 4))).toBe(
      "none: the cluster has room for 1 of its 8 workers, and the nodes that may still join for 2 more",
    );
    expect(roomWords(scaling(1, { CPU: 8 }), growing(cluster([8, 0]), 5, 4))).toBe(
      "for 1 trial at once, if nothing else runs",
    );
  });
});

describe("what a search costs", () => {
  const limits = { max_concurrent_trials: null } as unknown as DryRun["limits"];
  const asked = (more: object) =>
    ({
      num_samples: 16,
      max_t: 27,
      time_attr: "training_iteration",
      scaling: { num_workers: 2, use_gpu: false, resources_per_worker: {} },
      limits,
      gpu_hours_at_most: null,
      scheduler: { type: "asha" },
      ...more,
    }) as unknown as Parameters<typeof costWords>[0];
  const two = cluster([8, 0]);
  const grown = growing(cluster([0, 0]), 2, 4);

  it.each([
    [{}, null, undefined, "432 iterations"],
    [{}, 10, undefined, "432 iterations; at 10 s each, 1 h 12 min of training"],
    [{}, 10, two, "432 iterations; at 10 s each, 1 h 12 min of training, in about 18 min with 4 trials at once"],
    [
      { gpu_hours_at_most: 2.4, limits: { max_concurrent_trials: 2 } },
      10,
      two,
      "432 iterations; at 10 s each, 1 h 12 min of training and 2.4 GPU hours, in about 36 min with 2 trials at once",
    ],
    [
      { time_attr: "time_total_s" },
      null,
      two,
      "432 × time_total_s; 7 min 12 s of training, in about 1 min 48 s with 4 trials at once",
    ],
    [{ num_samples: null, gpu_hours_at_most: 8 }, null, two, "at most 8 GPU hours"],
    [{}, 10, grown, "432 iterations; at 10 s each, 1 h 12 min of training, in about 18 min with 4 trials at once"],
    [{ max_t: null }, 10, two, "no limit"],
    [{ gpu_hours_at_most: 0, scheduler: { budget: 3.2 } }, null, two, "86 iterations"],
  ])("%o at %s s: %o", (more, seconds, cluster, words) => expect(costWords(asked(more), seconds, cluster)).toBe(words));
});

describe("what a scheduler will probably do", () => {
  it.each([
    [null, null, ""],
    [[], 0, ""],
    [[{ iteration: 27, trials: 1 }], 0, "1 trial reaches 27 iterations"],
    [
      [
        { iteration: 1, trials: 27 },
        { iteration: 4, trials: 8 },
        { iteration: 27, trials: 1 },
      ],
      4,
      "27 trials reach 1 iteration, 8 reach 4, 1 reaches 27; 4 GPU hours",
    ],
  ])("%o with %o GPU hours: %o", (reached, expected_gpu_hours, words) =>
    expect(reachWords({ reached, expected_gpu_hours })).toBe(words),
  );
});
