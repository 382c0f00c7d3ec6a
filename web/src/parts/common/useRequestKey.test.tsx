import { renderHook } from "@testing-library/react";
import { expect, it } from "vitest";
import { useRequestKey } from "./useRequestKey";

it("gives the same content the same key, and other content or another visit another one", () => {
  const { result, rerender } = renderHook(useRequestKey);
  const first = result.current({ name: "Σ".repeat(300) });
  const second = result.current({ name: "b" });
  rerender();
  expect(result.current({ name: "Σ".repeat(300) })).toBe(first);
  expect(second).not.toBe(first);
  expect(renderHook(useRequestKey).result.current({ name: "b" })).not.toBe(second);
  expect(first).toMatch(/^[\w.-]{1,200}$/); // what a header may contain
});
