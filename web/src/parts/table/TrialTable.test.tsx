import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, fireEvent, render, screen, within, waitFor } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Trial } from "../../api/types";
import type { Expected } from "../../curves/expected";
import { TrialTable, type ColumnChoice } from "./TrialTable";

beforeEach(() => {
  // The table draws only the rows that fit into its box, and happy-dom has no layout.
  vi.spyOn(HTMLElement.prototype, "offsetHeight", "get").mockReturnValue(400);
  vi.spyOn(HTMLElement.prototype, "offsetWidth", "get").mockReturnValue(800);
});
afterEach(() => void vi.restoreAllMocks());

const OBJECTIVES = [
  { metric: "loss", mode: "min" as const },
  { metric: "latency", mode: "min" as const },
];
const EXPERIMENT = {
  metric: "loss",
  mode: "min" as const,
  scope: "all" as const,
  time_attr: "training_iteration",
  objectives: OBJECTIVES,
  labels: {},
  counts: { pending: 0, running: 0, paused: 0, completed: 2, stopped: 0, failed: 0, cancelled: 0 },
  trials: 2,
  scheduler: { type: "fifo" },
  resolved: {},
} as unknown as Parameters<typeof TrialTable>[0]["experiment"];
const TRIALS = [0, 1].map(
  (number) =>
    ({
      id: `trial_${number}`,
      number,
      state: "completed",
      reason: "",
      params: { "optimizer/0/lr": 0.1 },
      last: { loss: 0.1 * number, latency: 1 - number },
      best_value: 0.1 * number,
      steps: 1,
    }) as unknown as Trial,
);
const nothing = () => {};

function table(
  fronts: ReadonlyMap<number, number> | null,
  expected: Expected | null = null,
  labels = {},
  trials = TRIALS,
  onChoice: Parameters<typeof TrialTable>[0]["onChoice"] = nothing,
  more: Partial<Parameters<typeof TrialTable>[0]> = {},
) {
  return (
    <MantineProvider env="test">
      <TrialTable
        experiment={{ ...EXPERIMENT, labels }}
        trials={trials}
        rows={trials}
        total={2}
        rank={new Map()}
        fronts={fronts}
        expected={expected}
        theme="light"
        state={null}
        onState={nothing}
        sort={{ column: "number", descending: false }}
        onSort={nothing}
        chips={[]}
        onShowAll={nothing}
        selected={null}
        onSelect={nothing}
        onPoint={nothing}
        picked={[]}
        onPick={nothing}
        onCompare={nothing}
        choice={{ hidden: [], pinned: [] }}
        onChoice={onChoice}
        {...more}
      />
    </MantineProvider>
  );
}

function shown(column: string): (string | null)[] {
  const rows = within(screen.getByRole("table", { name: "Trials" }))
    .getAllByRole("row")
    .slice(1);
  return rows.map((row) => row.querySelector(`td[data-column=${column}]`)!.textContent);
}

const headers = () => screen.getAllByRole("columnheader").map((header) => header.textContent);

const expecting = (value: number): Expected => ({ value: () => value, dropped: () => false, runs: () => null });

it("shows the fronts that trials are on now, even if nothing else in the table has changed", () => {
  const { rerender } = render(table(new Map()));
  expect(shown("front")).toEqual(["", ""]);
  rerender(table(new Map([[0, 1], [1, 2]]))); // prettier-ignore
  expect(shown("front")).toEqual(["1", "2"]);
  rerender(table(new Map([[0, 2], [1, 1]]))); // prettier-ignore
  expect(shown("front")).toEqual(["2", "1"]);
});

it("shows commands in why a trial waits as code, and quotes other reasons as they are", () => {
  const waiting = { ...TRIALS[0]!, state: "pending", waiting: "needs 2 GPUs: start one with `ray start`." } as Trial;
  render(table(null, null, {}, [waiting, { ...TRIALS[1]!, reason: "an odd ` in an error." }]));
  expect(shown("reason")).toEqual(["needs 2 GPUs: start one with ray start", "an odd ` in an error."]);
  expect(screen.getByText("ray start").tagName).toBe("CODE");
});

it("shows the values that are expected now, even if nothing else in the table has changed", () => {
  const { rerender } = render(table(null, expecting(0.25)));
  expect(shown("expected")).toEqual(["0.25", "0.25"]);
  rerender(table(null, expecting(0.75)));
  expect(shown("expected")).toEqual(["0.75", "0.75"]);
});

it("names parameters as the choices are labeled now", () => {
  const { rerender } = render(table(null, null, { optimizer: ["adam"] }));
  expect(headers()).toContain("optimizer/adam/lr");
  rerender(table(null, null, { optimizer: ["adamw"] }));
  expect(headers()).toContain("optimizer/adamw/lr");
});

it("shortens a long name and a long category, which can be read in full as tooltips", async () => {
  const name = "n".repeat(200);
  const category = "c".repeat(200);
  const trials = TRIALS.map((trial) => ({ ...trial, params: { [name]: category, lr: "adam" } }));
  render(table(null, null, {}, trials));
  const head = screen.getByRole("button", { name });
  expect(head.textContent).toMatch(/^n+…n+$/);
  expect(head.textContent.length).toBeLessThan(60);
  expect(head.title).toBe(name);
  fireEvent.click(screen.getByRole("button", { name: "columns" }));
  expect(await screen.findByRole("checkbox", { name })).toBeTruthy();
  const [cell] = screen.getAllByText(category);
  expect(cell!.closest("td")!.title).toBe(category);
  expect(screen.getAllByText("adam")[0]!.closest("td")!.hasAttribute("title")).toBe(false);
});

it("keeps the focus near a button that is gone after a click", () => {
  let picked: readonly number[] = [0, 1];
  let chips = [{ label: "lr 0.1", clear: () => (chips = []) as unknown as void }];
  const now = () =>
    table(null, null, {}, TRIALS, nothing, { picked, chips, onPick: (change) => void (picked = change(picked)) });
  const { rerender } = render(now());
  const click = (name: string) => {
    const button = screen.getByRole("button", { name });
    button.focus();
    fireEvent.click(button);
    rerender(now());
    return document.activeElement;
  };
  const region = screen.getByRole("region", { name: "Trials" });
  expect(click("Remove the filter lr 0.1")).toBe(screen.getByRole("button", { name: "all" }));
  expect(click("Unpick trial 1")).toBe(screen.getByRole("button", { name: "Unpick trial 0" }));
  expect(click("Unpick trial 0")).toBe(region);
  picked = [0, 1];
  rerender(now());
  expect(click("Clear")).toBe(region);
});

it("moves by as many trials as keys were pressed, even if the first choice has not been drawn yet", () => {
  const trials = [0, 1, 2, 3].map((number) => ({ ...TRIALS[0]!, id: `trial_${number}`, number }));
  const chosen: number[] = [];
  const picked: number[] = [];
  const content = (selected: number | null) =>
    table(null, null, {}, trials, nothing, {
      selected,
      onSelect: (number) => chosen.push(number),
      onPick: (change) => picked.push(...change([])),
    });
  const { rerender } = render(content(null));
  const press = (key: string) => fireEvent.keyDown(document.body, { key });
  press("j");
  press("j");
  press("j");
  expect(chosen).toEqual([0, 1, 2]);
  rerender(content(1));
  press("x");
  press("k");
  expect([picked, chosen.at(-1)]).toEqual([[2], 1]);
  rerender(content(0)); // a click on another trial
  press("j");
  expect(chosen.at(-1)).toBe(1);
});

it("keeps the focus in the table if the row that has it leaves the filters", () => {
  const { rerender } = render(table(null));
  screen.getByRole("link", { name: "1" }).focus();
  rerender(table(null, null, {}, TRIALS, nothing, { rows: TRIALS.slice(0, 1) }));
  expect(document.activeElement).toBe(screen.getByRole("region", { name: "Trials" }));
  const outside = screen.getByRole("button", { name: "columns" });
  screen.getByRole("link", { name: "0" }).focus();
  outside.focus();
  rerender(table(null, null, {}, TRIALS, nothing, { rows: [] }));
  expect(document.activeElement).toBe(outside);
});

it("says on paper how many trials are left out, and reads no more of them for it", () => {
  const onMore = vi.fn();
  render(table(null, null, {}, TRIALS, nothing, { total: 1200, onMore }));
  const asked = onMore.mock.calls.length;
  const note = () => screen.queryByText("The first 2 of 1,200 trials are printed.");
  expect(note()).toBeNull();
  act(() => void window.dispatchEvent(new Event("beforeprint")));
  expect(note()).toBeTruthy();
  expect(shown("number")).toHaveLength(2);
  act(() => void window.dispatchEvent(new Event("afterprint")));
  expect(note()).toBeNull();
  expect(onMore).toHaveBeenCalledTimes(asked);
});

it("moves the focus of the keyboard into the list of columns when it is opened", async () => {
  render(table(null, null));
  const button = screen.getByRole("button", { name: "columns" });
  button.focus();
  fireEvent.click(button);
  const menu = await screen.findByRole("group", { name: "Columns of the table" });
  await waitFor(() => expect(document.activeElement).toBe(within(menu).getByRole("checkbox", { name: "State" })));
  fireEvent.keyDown(document.activeElement!, { key: "Escape" });
  await waitFor(() => expect(document.activeElement).toBe(button));
});

it("hides and pins all columns that are chosen before the first change is drawn", async () => {
  let choice: ColumnChoice = { hidden: [], pinned: [] };
  render(
    table(null, null, {}, TRIALS, (change) => {
      choice = change(choice); // as an address that is drawn later
    }),
  );
  fireEvent.click(screen.getByRole("button", { name: "columns" }));
  const menu = within(await screen.findByRole("group", { name: "Columns of the table" }));
  fireEvent.click(menu.getByRole("checkbox", { name: "Iteration" }));
  fireEvent.click(menu.getByRole("checkbox", { name: "Why" }));
  fireEvent.click(menu.getByRole("button", { name: "pin State" }));
  fireEvent.click(menu.getByRole("button", { name: "pin Last latency" }));
  expect(choice).toEqual({ hidden: ["iteration", "reason"], pinned: ["state", "metric:latency"] });
});

it("saves the parameters that only trials have which had not been read yet", async () => {
  const saved: Blob[] = [];
  vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => `blob:${saved.push(blob as Blob)}`);
  const later = { ...TRIALS[1]!, id: "trial_2", number: 2, params: { "optimizer/1/momentum": 0.9 } };
  const more: Parameters<typeof table>[5] = {
    onAll: () => Promise.resolve([{ items: [...TRIALS, later] }] as never),
    call: { name: "trials", python: "", reads: [] },
    choice: { hidden: ["best"], pinned: ["metric:latency"] },
  };
  const content = table(null, null, {}, TRIALS, nothing, more);
  render(<QueryClientProvider client={new QueryClient()}>{content}</QueryClientProvider>);
  fireEvent.click(screen.getByRole("button", { name: "CSV" }));
  await waitFor(() => expect(saved).toHaveLength(1));
  const [heads, ...rows] = (await saved[0]!.text()).trimEnd().split("\r\n");
  expect(heads!.split(",")[1]).toContain("latency");
  expect(heads!).toContain("momentum");
  expect(rows.map((row) => row.split(",")[0])).toEqual(["0", "1", "2"]);
  expect(rows[2]).toContain(",0.9");
});

it("draws only the columns in view if there are very many parameters", async () => {
  const saved: Blob[] = [];
  vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => `blob:${saved.push(blob as Blob)}`);
  const names = Array.from({ length: 300 }, (_, i) => `p${i}`);
  const trials = TRIALS.map((trial) => ({ ...trial, params: Object.fromEntries(names.map((name) => [name, 0.5])) }));
  const more: Parameters<typeof table>[5] = {
    choice: { hidden: [], pinned: ["param:p7"] },
    call: { name: "trials", python: "", reads: [] },
  };
  const content = table(null, null, {}, trials, nothing, more);
  render(<QueryClientProvider client={new QueryClient()}>{content}</QueryClientProvider>);
  const grid = screen.getByRole("table");
  const all = Number(grid.getAttribute("aria-colcount"));
  expect(all).toBeGreaterThan(300);
  const drawn = () =>
    within(grid)
      .getAllByRole("columnheader")
      .map((head) => [head.textContent.replace("▴", ""), Number(head.getAttribute("aria-colindex"))] as const);
  const cells = () => grid.querySelectorAll("tbody tr:first-child td:not([aria-hidden])").length;
  const first = drawn();
  expect(first.slice(0, 2)).toEqual([["Trial", 1], ["p7", 2]]); // prettier-ignore
  expect(first.map(([name]) => name)).toContain("p0");
  expect(first.length).toBeLessThan(40);
  expect(cells()).toBe(first.length);

  const region = screen.getByRole("region", { name: "Trials" });
  region.scrollLeft = 140 * 200;
  fireEvent.scroll(region);
  const later = drawn().map(([name]) => name);
  expect(later).toEqual(expect.arrayContaining(["Trial", "p7", "State", "p202", "Why"]));
  expect(later).not.toContain("p0");
  expect(drawn().find(([name]) => name === "Why")![1]).toBe(all);
  expect(new Set(drawn().map(([, index]) => index)).size).toBe(cells());
  const gaps = [...grid.querySelectorAll<HTMLElement>("tbody tr:first-child td[aria-hidden]")];
  const parameters = later.filter((name) => /^p\d+$/.test(name) && name !== "p7").length;
  const width = gaps.reduce((sum, gap) => sum + parseFloat(gap.style.minWidth), 0);
  expect(width).toBe(140 * (299 - parameters));

  fireEvent.click(screen.getByRole("button", { name: "CSV" }));
  await waitFor(() => expect(saved).toHaveLength(1));
  expect((await saved[0]!.text()).split("\r\n")[0]!.split(",")).toEqual(expect.arrayContaining(names));
});

it("moves on from the row that was clicked, whatever keys were pressed just before", () => {
  const onSelect = vi.fn();
  const trials = [0, 1, 2, 3].map((number) => ({ ...TRIALS[0]!, id: `trial_${number}`, number }));
  const { rerender, container } = render(table(null, null, {}, trials, nothing, { selected: 0, onSelect }));
  fireEvent.keyDown(document.body, { key: "j" });
  fireEvent.keyDown(document.body, { key: "j" });
  fireEvent.click(container.querySelector("tr[aria-rowindex='3']")!);
  expect(onSelect.mock.calls.flat()).toEqual([1, 2, 1]);
  rerender(table(null, null, {}, trials, nothing, { selected: 1, onSelect }));
  fireEvent.keyDown(document.body, { key: "j" });
  expect(onSelect.mock.calls.flat().at(-1)).toBe(2);
});
