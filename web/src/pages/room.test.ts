import { describe, expect, it } from "vitest";
import type { Cluster, Scaling } from "../api/types";
import { askedWords, bundleOf, roomWords } from "./room";

const scaling = (num_workers: number, resources_per_worker = {}, use_gpu = false) =>
  ({ num_workers, resources_per_worker, use_gpu }) as Scaling;
const cluster = (...nodes: [number, number][]) =>
  ({ nodes: nodes.map(([cpus, gpus]) => ({ cpus, gpus })) }) as Pick<Cluster, "nodes">;

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
});
