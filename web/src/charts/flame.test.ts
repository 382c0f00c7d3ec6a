import { describe, expect, it } from "vitest";
import { boxesOf, callsOf, collapsed, hottest, NARROWEST, type Frame, type Part, type Speedscope } from "./flame";

const FRAMES: Frame[] = [
  { name: "train", file: "/code/train.py", line: 41 },
  { name: "step", file: "/code/train.py", line: 12 },
  { name: "forward", file: "/lib/net.py", line: 7 },
  { name: "(other; stacks)", file: "", line: 0 },
];
const PART: Part = {
  type: "sampled",
  name: "train",
  unit: "seconds",
  startValue: 0,
  endValue: 10,
  samples: [[0, 1, 2], [0, 1], [0], [3]],
  weights: [6, 1, 2, 1],
};

describe("the calls of a thread", () => {
  const root = callsOf(FRAMES, PART);

  it("share the frames with which their stacks begin", () => {
    expect([root.weight, root.own]).toEqual([10, 0]);
    expect(root.calls.map((call) => [call.frame!.name, call.weight, call.own])).toEqual([
      ["train", 9, 2],
      ["(other; stacks)", 1, 1],
    ]);
    const step = root.calls[0]!.calls[0]!;
    expect([step.frame!.name, step.weight, step.own, step.calls[0]!.weight]).toEqual(["step", 7, 1, 6]);
  });

  it("put the widest first, whatever the order of the samples", () => {
    const turned = { ...PART, samples: [[3], [0]], weights: [1, 2] };
    expect(callsOf(FRAMES, turned).calls.map((call) => call.weight)).toEqual([2, 1]);
  });

  it("become boxes, each below its caller and within it", () => {
    expect(boxesOf(root).map(({ call, depth, left, width }) => [call.frame?.name, depth, left, width])).toEqual([
      [undefined, 0, 0, 1],
      ["train", 1, 0, 0.9],
      ["step", 2, 0, 0.7],
      ["forward", 3, 0, 0.6],
      ["(other; stacks)", 1, 0.9, 0.1],
    ]);
  });

  it("fill the width if one of them is opened, with its callers above", () => {
    const step = root.calls[0]!.calls[0]!;
    expect(boxesOf(step).map(({ call, depth, left, width }) => [call.frame?.name, depth, left, width])).toEqual([
      [undefined, 0, 0, 1],
      ["train", 1, 0, 1],
      ["step", 2, 0, 1],
      ["forward", 3, 0, 6 / 7],
    ]);
  });

  it("are left out if they are too small to see", () => {
    const many = { ...PART, samples: [[0], [1]], weights: [1, NARROWEST / 2] };
    expect(boxesOf(callsOf(FRAMES, many)).map((box) => box.call.frame?.name)).toEqual([undefined, "train"]);
    expect(boxesOf(callsOf(FRAMES, { ...PART, samples: [], weights: [] }))).toEqual([]);
  });
});

it("adds up the samples of each line over all stacks that end in it", () => {
  const part = { ...PART, samples: [[0, 2], [1, 2], [0]], weights: [1, 1.5, 2] };
  expect(hottest(FRAMES, part, 5).map(({ frame, own }) => [frame.name, own])).toEqual([
    ["forward", 2.5],
    ["train", 2],
  ]);
  expect(hottest(FRAMES, part, 1)).toHaveLength(1);
});

it("writes collapsed stacks as one line for each stack, without the separator inside a name", () => {
  const file = { shared: { frames: FRAMES }, profiles: [PART] } as Speedscope;
  expect(collapsed(file)).toBe(
    "train;train (train.py:41);step (train.py:12);forward (net.py:7) 6000000\n" +
      "train;train (train.py:41);step (train.py:12) 1000000\n" +
      "train;train (train.py:41) 2000000\n" +
      "train;(other, stacks) 1000000\n",
  );
});
