import { act, renderHook } from "@testing-library/react";
import { expect, it } from "vitest";
import { MemoryRouter } from "react-router";
import { useAddress } from "./useAddress";

it("a change that comes before the one before it is drawn loses nothing", () => {
  const { result } = renderHook(() => useAddress(), {
    wrapper: ({ children }) => <MemoryRouter initialEntries={["/?tab=curves"]}>{children}</MemoryRouter>,
  });
  const { set } = result.current;
  const pick = (number: number) => set((get) => ({ pick: [get("pick"), number].filter((one) => one !== null).join() }));
  act(() => {
    pick(0);
    pick(1);
    set({ tab: null, state: "failed" });
  });
  expect([result.current.get("pick"), result.current.get("tab"), result.current.get("state")]).toEqual([
    "0,1",
    null,
    "failed",
  ]);
  act(() => set({ pick: null }));
  act(() => pick(7));
  expect(result.current.get("pick")).toBe("7");
});
