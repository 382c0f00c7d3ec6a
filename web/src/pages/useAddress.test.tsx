import { act, renderHook, waitFor } from "@testing-library/react";
import { expect, it } from "vitest";
import { BrowserRouter, MemoryRouter, useLocation, useNavigate } from "react-router";
import { useAddress } from "./useAddress";

it("a change that comes before the previous one is drawn loses nothing", () => {
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

it("changes by two parts of the page, one right after the other, are both kept", () => {
  const { result } = renderHook(() => [useAddress(), useAddress()] as const, {
    wrapper: ({ children }) => <MemoryRouter initialEntries={["/?tab=curves"]}>{children}</MemoryRouter>,
  });
  const [table, keys] = result.current;
  act(() => {
    table.set({ pick: "3" });
    keys.set({ at: "4" });
    table.set({ tab: null });
  });
  const { get } = result.current[0];
  expect([get("pick"), get("at"), get("tab")]).toEqual(["3", "4", null]);
});

it("a part of the page that appears before a change is drawn does not undo it", () => {
  const wrapper = ({ children }: { children: React.ReactNode }) => (
    <MemoryRouter initialEntries={["/?tab=curves"]}>{children}</MemoryRouter>
  );
  const first = renderHook(() => useAddress(), { wrapper });
  act(() => {
    first.result.current.set({ pick: "3" });
    renderHook(() => useAddress(), { wrapper }); // it is drawn with the address from before
    first.result.current.set({ at: "4" });
  });
  const { get } = first.result.current;
  expect([get("pick"), get("at")]).toEqual(["3", "4"]);
});

it("an address that was not set by this page replaces the choices", () => {
  const { result } = renderHook(() => ({ address: useAddress(), navigate: useNavigate() }), {
    wrapper: ({ children }) => <MemoryRouter initialEntries={["/?pick=3"]}>{children}</MemoryRouter>,
  });
  act(() => void result.current.navigate("/?state=failed"));
  act(() => result.current.address.set({ at: "4" }));
  const { get } = result.current.address;
  expect([get("pick"), get("state"), get("at")]).toEqual([null, "failed", "4"]);
});

it("a change that is not drawn before another page opens is not carried to that page", () => {
  const { result } = renderHook(() => ({ address: useAddress(), navigate: useNavigate() }), {
    wrapper: ({ children }) => <MemoryRouter initialEntries={["/experiments/1"]}>{children}</MemoryRouter>,
  });
  act(() => {
    result.current.address.set({ pick: "3" });
    void result.current.navigate("/experiments/2");
  });
  act(() => result.current.address.set({ at: "4" }));
  const { get } = result.current.address;
  expect([get("pick"), get("at")]).toEqual([null, "4"]);
});

it("the way back leads to the earlier tab and closes the panel of a trial", async () => {
  window.history.pushState(null, "", "/list");
  window.history.pushState(null, "", "/?sort=lr");
  const { result } = renderHook(() => ({ address: useAddress(), at: useLocation() }), { wrapper: BrowserRouter });
  const set = (changes: Record<string, string | null>) => act(() => result.current.address.set(changes));
  const shows = (url: string) => waitFor(() => expect(result.current.at.pathname + result.current.at.search).toBe(url));
  const go = async (delta: number, url: string) => {
    window.history.go(delta);
    await shows(url);
  };
  set({ tab: "parameters" });
  set({ trial: "3" });
  set({ trial: "4" });
  set({ view: "logs" });
  await shows("/?sort=lr&tab=parameters&trial=4&view=logs");
  await go(-1, "/?sort=lr&tab=parameters");
  // However many trials are opened and closed, "back" need not be pressed for each of them.
  for (const trial of ["5", "6"]) {
    set({ trial });
    await shows(`/?sort=lr&tab=parameters&trial=${trial}`);
    set({ trial: null });
    await shows("/?sort=lr&tab=parameters");
  }
  await go(-1, "/?sort=lr");
  await go(1, "/?sort=lr&tab=parameters");
  // A closed trial stays closed, and what was chosen while it was open stays.
  set({ trial: "7" });
  set({ sort: "loss" });
  act(() => {
    result.current.address.set({ trial: null });
    result.current.address.set({ pick: "7" });
  });
  await shows("/?sort=loss&tab=parameters&pick=7");
  // Whoever opens another one at once finds it open, and the way back closes it.
  set({ trial: "8" });
  act(() => {
    result.current.address.set({ trial: null });
    result.current.address.set({ trial: "9" });
  });
  await shows("/?sort=loss&tab=parameters&pick=7&trial=9");
  await go(-1, "/?sort=loss&tab=parameters&pick=7");
  set({ tab: null });
  await shows("/?sort=loss&pick=7");
  await go(-1, "/?sort=loss&tab=parameters&pick=7");
  await go(-1, "/?sort=lr");
  await go(-1, "/list");
});
