import { describe, expect, it } from "vitest";
import { errorAt, linesOf } from "./logLines";

const part = (rank: number, text: string) => ({ rank, stream: "out", text });

describe("the lines of a log", () => {
  it("have a heading for each rank and are counted in it", () => {
    const lines = linesOf([part(0, "a\nb\n"), part(1, ""), part(2, "c")]);
    expect(lines.map(({ number, text }) => `${number} ${text}`)).toEqual([
      "0 rank 0 · out · 2 lines",
      "1 a",
      "2 b",
      "0 rank 2 · out · 1 line",
      "1 c",
    ]);
  });

  it("are shown as in a terminal: the last state of a progress bar, without colors", () => {
    const [, bar, colour] = linesOf([part(0, "10%\r50%\r100%\r\n\u001b[31mred\u001b[0m\n")]);
    expect(bar!.text).toBe("100%");
    expect(colour!.text).toBe("red");
  });

  it("keep empty lines", () => expect(linesOf([part(0, "a\n\nb\n")]).length).toBe(4));
});

describe("the first error", () => {
  const at = (...texts: string[]) => errorAt(linesOf([part(0, texts.join("\n"))])) - 1;

  it("is a traceback, an exception, a level of logging, or memory that has run out", () => {
    expect(at("fine", "Traceback (most recent call last):", "ValueError: no")).toBe(1);
    expect(at("fine", "torch.cuda.OutOfMemoryError: CUDA out of memory")).toBe(1);
    expect(at("2026-01-01 ERROR disk is full")).toBe(0);
    expect(at("KeyError: 'lr'")).toBe(0);
    expect(at("Fatal Python error: Segmentation fault")).toBe(0);
  });

  it("is not a word that only looks like an error", () => {
    expect(at("validation error 0.12", "Errors so far: none", "no error", "mean_squared_error=0.1")).toBe(-2);
  });

  it("is searched for from a given line onwards", () => {
    const lines = linesOf([part(0, "KeyError: 1\nfine\nKeyError: 2\n")]);
    expect([errorAt(lines), errorAt(lines, 2), errorAt(lines, 4)]).toEqual([1, 3, -1]);
  });
});
