import { expect, it } from "vitest";
import { exactly, exactText, parsed, smallest } from "./exact";

it("reads and writes whole numbers with all digits", () => {
  const text =
    '{"seed":9223372036854775807,"low":-9007199254740993,"lr":0.12345678901234568,"size":1e+21,"n":[3],' +
    '"12345678901234567890":"\\"12345678901234567890"}';
  const found = exactly(text);
  expect(found).toMatchObject({ seed: 9223372036854775807n, low: -9007199254740993n, size: 1e21, n: [3] });
  expect(exactText(found)).toBe(text);
});

it("writes them as numbers where JSON is only shown", () => {
  expect(JSON.parse(JSON.stringify([9007199254740993n]))).toEqual([9007199254740992]);
});

it("takes a number for what fits into one", () => {
  expect([3n, 9007199254740993n, "3", 0.5].map(smallest)).toEqual([3, 9007199254740993n, "3", 0.5]);
});

it("keeps the digits of the values of parameters and of seeds, and only of those", () => {
  const answer =
    '{"items":[{"params":{"seed":9007199254740993,"lr":0.1},"bytes":9007199254740993}],"seed":9007199254740993}';
  expect(parsed(answer)).toEqual({
    items: [{ params: { seed: 9007199254740993n, lr: 0.1 }, bytes: 9007199254740992 }],
    seed: 9007199254740993n,
  });
  expect(parsed('{"params":{"n":123456789012345,"lr":0.12345678901234568}}')).toEqual({
    params: { n: 123456789012345, lr: 0.12345678901234568 },
  });
});
