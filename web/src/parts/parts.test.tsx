import { MantineProvider } from "@mantine/core";
import { cleanup, fireEvent, render, screen, within } from "@testing-library/react";
import { useState, type ReactNode } from "react";
import { describe, expect, it, vi } from "vitest";
import { ApiError } from "../api/client";
import type { Decision, Experiment, Lineage, Trial, TrialState } from "../api/types";
import { ranks } from "../curves/colours";
import { expectedOf, type Expected } from "../curves/expected";
import { config } from "../format";
import { after, nothing, story } from "../test/run";
import { TONE } from "./common/StateBadge";
import { DecisionLog, factsOf, toneOf } from "./decisions/DecisionLog";
import { parseKinds } from "./decisions/DecisionsTab";
import { valueless } from "../charts/dimensions";
import { Runs, unfinishedWords } from "./curves/BestPanel";
import { emptyWords } from "./parameters/ParametersTab";
import { FailureNotice } from "./trial/FailureNotice";
import { FinishedLegend } from "./parameters/FinishedLegend";
import { cautionOf, earlyWords, Shares, sourceWords } from "./parameters/Importance";
import { LineageOf } from "./trial/Lineage";
import { ProblemBox } from "./common/Problem";
import { heldWords, Progress, spentShare } from "./experiments/Progress";
import { savedOfMany, savedShare, savedTraining } from "./common/saved";
import { domainsOf, domainWords, learnedWords, Setup } from "./setup/Setup";
import { places, repeatFacts } from "./trial/TrialDetails";
import { columnsOf, sortTrials } from "./table/trialColumns";
import { TrialTable, toggled, type ColumnChoice } from "./table/TrialTable";

const hasFailed = (trial: Trial) => trial.state === "failed";
const show = (node: ReactNode) => render(<MantineProvider>{node}</MantineProvider>);
const VIEWS = after(nothing(), story(300));
const NONE = { pending: 0, running: 0, paused: 0, completed: 0, stopped: 0, failed: 0, cancelled: 0 };
const EXPERIMENT = {
  metric: "accuracy",
  mode: "max" as const,
  scope: "all" as const,
  time_attr: "training_iteration",
  objectives: [],
  labels: {},
  scheduler: {},
  resolved: null,
};

interface TableProps {
  trials: readonly Trial[];
  selected: number[];
  /** Return true for the trials that pass the filters. */
  passes?: (trial: Trial) => boolean;
  onShowAll?: () => void;
  sortedByService?: boolean;
  expected?: Expected | null;
}

function Table({ trials, selected, passes = () => true, onShowAll = () => {}, ...more }: TableProps) {
  const [state, setState] = useState<TrialState | null>(null);
  const [sort, setSort] = useState({ column: "best", descending: true });
  const [picked, setPicked] = useState<readonly number[]>([]);
  const [choice, setChoice] = useState<ColumnChoice>({ hidden: [], pinned: [] });
  const shown = state ? trials.filter((trial) => trial.state === state) : trials;
  const rows = sortTrials(shown.filter(passes), columnsOf(trials, "accuracy", "training_iteration"), sort);
  return (
    <TrialTable
      experiment={{ ...EXPERIMENT, counts: countsOf(trials), trials: trials.length }}
      expected={more.expected ?? null}
      sortedByService={more.sortedByService ?? false}
      trials={trials}
      rows={rows}
      total={rows.length}
      rank={ranks(trials, "max")}
      theme="light"
      selected={null}
      onSelect={(n) => selected.push(n)}
      onPoint={() => {}}
      state={state}
      onState={setState}
      sort={sort}
      onSort={setSort}
      chips={[]}
      onShowAll={onShowAll}
      picked={picked}
      onPick={setPicked}
      onCompare={() => {}}
      choice={choice}
      onChoice={setChoice}
    />
  );
}

function countsOf(trials: readonly Trial[]): Experiment["counts"] {
  const counts = { pending: 0, running: 0, paused: 0, completed: 0, stopped: 0, failed: 0, cancelled: 0 };
  for (const trial of trials) counts[trial.state]++;
  return counts;
}

function table(selected: number[] = [], trials = VIEWS.trials) {
  show(<Table trials={trials} selected={selected} />);
  return () =>
    screen
      .getAllByRole("row")
      .slice(1)
      .map((row) =>
        within(row)
          .getAllByRole("cell")
          .map((cell) => cell.textContent),
      );
}

describe("the trial table", () => {
  it("begins with the best trial and draws only the rows in view", () => {
    const rows = table()();
    const best = [...VIEWS.trials].sort((a, b) => (b.best_value ?? 0) - (a.best_value ?? 0))[0]!;
    expect(rows[0]![0]).toBe(String(best.number));
    expect(rows.length).toBeLessThan(60);
    expect(screen.getByRole("heading").textContent).toBe("Trials · 300");
  });

  it("sorts by the expected value after repeats, whether the service sorts or the page", () => {
    const runs = { repeated: [{ trials: [3, 300], mean: 0.5, expected: 0.6 }], single: { middle: 0.4, weight: 0.5 } };
    const expected = expectedOf({ runs: { ...runs, dropped: [] } } as unknown as Experiment["best"]);
    for (const sortedByService of [false, true]) {
      show(<Table trials={VIEWS.trials} selected={[]} expected={expected} sortedByService={sortedByService} />);
      const head = screen.getByRole("columnheader", { name: "Expected accuracy" });
      fireEvent.click(within(head).getByRole("button"));
      expect(head.getAttribute("aria-sort")).toBe("descending");
      expect(screen.getByText(/^Some configurations were run several times\. Trials are ranked by/)).toBeTruthy();
      cleanup();
    }
  });

  it("sorts by the column that is clicked, and reverses the order at a second click", () => {
    const rows = table();
    const head = screen.getByRole("button", { name: "Trial" });
    fireEvent.click(head);
    expect(rows()[0]![0]).toBe("0");
    fireEvent.click(head);
    expect(rows()[0]![0]).toBe("299");
    expect(screen.getByRole("columnheader", { name: /Trial/ }).getAttribute("aria-sort")).toBe("descending");
  });

  it("filters by state", () => {
    const rows = table();
    const completed = VIEWS.trials.filter((trial) => trial.state === "completed").length;
    fireEvent.click(screen.getByRole("button", { name: `completed ${completed}` }));
    expect(new Set(rows().map((cells) => cells[1]))).toEqual(new Set(["completed"]));
  });

  it("opens a trial from its number", () => {
    const selected: number[] = [];
    const rows = table(selected);
    fireEvent.click(screen.getByRole("link", { name: rows()[1]![0]! }));
    expect(selected).toEqual([Number(rows()[1]![0])]);
  });

  it("picks trials to compare, each with a color", () => {
    const rows = table();
    const [first, second] = [rows()[0]![0]!, rows()[1]![0]!];
    fireEvent.click(screen.getByRole("checkbox", { name: `Pick trial ${first}` }));
    expect(screen.getByRole<HTMLButtonElement>("button", { name: /Pick another one/ }).disabled).toBe(true);
    fireEvent.click(screen.getByRole("checkbox", { name: `Pick trial ${second}` }));
    expect(screen.getByRole("button", { name: "Compare 2 trials" })).toBeTruthy();
    fireEvent.click(screen.getByRole("button", { name: `Unpick trial ${first}` }));
    expect(screen.getByRole<HTMLInputElement>("checkbox", { name: `Pick trial ${first}` }).checked).toBe(false);
    expect(screen.getByRole<HTMLInputElement>("checkbox", { name: `Pick trial ${second}` }).checked).toBe(true);
  });

  it("releases the first pick when more trials are picked than there are colors", () => {
    const ten = Array.from({ length: 10 }, (_, i) => i);
    expect(toggled(ten, 99)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 99]);
    expect(toggled(ten, 4)).toEqual([0, 1, 2, 3, 5, 6, 7, 8, 9]);
  });

  it("hides and pins columns", async () => {
    table();
    fireEvent.click(screen.getByRole("button", { name: "columns" }));
    fireEvent.click(await screen.findByRole("checkbox", { name: "Why" }));
    expect(screen.queryByRole("columnheader", { name: "Why" })).toBeNull();
    fireEvent.click(await screen.findByRole("button", { name: "pin lr" }));
    const heads = screen.getAllByRole("columnheader").map((head) => head.textContent);
    expect(heads.slice(0, 2)).toEqual(["Trial", "lr"]);
  });

  it("has the whole configuration and the reason beside the result on a phone", () => {
    const wide = window.matchMedia.bind(window);
    window.matchMedia = (query) =>
      Object.defineProperty(wide(query), "matches", { value: query === "(max-width: 640px)" });
    try {
      table();
      const best = [...VIEWS.trials].sort((a, b) => (b.best_value ?? 0) - (a.best_value ?? 0))[0]!;
      const heads = screen.getAllByRole("columnheader").map((head) => head.textContent);
      expect(heads[3]).toBe("Configuration, why");
      const cell = within(screen.getAllByRole("row")[1]!).getAllByRole("cell")[3]!.textContent;
      // Each value is an element of its own, so that no line breaks within one.
      for (const [name, value] of Object.entries(best.params))
        expect(screen.getAllByText(config({ [name]: value })).length).toBeGreaterThan(0);
      expect(cell).toContain(best.reason);
    } finally {
      window.matchMedia = wide;
    }
  });

  it("leaves out last values that are the best ones", () => {
    const ids = (trials: readonly Trial[]) => columnsOf(trials, "accuracy", "training_iteration").map(({ id }) => id);
    const [one] = VIEWS.trials;
    expect(ids([{ ...one!, best_value: 1, last_value: 0.9 }])).toContain("last");
    expect(ids([{ ...one!, best_value: 1, last_value: 1 }])).not.toContain("last");
  });

  it("says so when there is nothing", () => {
    table([], []);
    expect(screen.getByText("No trial has been started yet.")).toBeTruthy();
  });
});

it("offers all trials if none passes the filters", () => {
  const onShowAll = vi.fn();
  show(<Table trials={VIEWS.trials} selected={[]} passes={() => false} onShowAll={onShowAll} />);
  expect(screen.getByText("No trial passes these filters.")).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Show all trials" }));
  expect(onShowAll).toHaveBeenCalledOnce();
});

describe("the decision log", () => {
  it("gives every decision its reason, newest first", () => {
    show(<DecisionLog decisions={VIEWS.decisions} onSelect={() => {}} height={400} />);
    const items = screen.getAllByRole("listitem").map((item) => item.textContent);
    expect(items[0]).toContain("all samples have ended");
    expect(items.some((text) => text.includes("stop") && text.includes("only the best continues"))).toBe(true);
  });

  it("gives the decisions that lead to a state the tone of that state", () => {
    expect(toneOf("stop")).toBe(TONE.stopped);
    expect(toneOf("pause")).toBe(TONE.paused);
    expect(toneOf("complete")).toBe(TONE.completed);
    expect(toneOf("stop")).not.toBe(toneOf("pause"));
    expect(toneOf("note")).toBeUndefined();
    show(<DecisionLog decisions={VIEWS.decisions} onSelect={() => {}} height={400} />);
    const stop = VIEWS.decisions.find(({ kind }) => kind === "stop")!;
    const kinds = screen.getAllByText(stop.kind, { selector: "[data-kind=stop]" });
    expect(kinds[0]!.dataset["tone"]).toBe(TONE.stopped);
  });

  it("is one stop of the tab key, and the arrow keys go through its buttons", () => {
    show(<DecisionLog decisions={VIEWS.decisions} onSelect={() => {}} height={400} details />);
    const list = screen.getByRole("region");
    const buttons = [...list.querySelectorAll<HTMLElement>("li button")];
    expect(new Set(buttons.map((button) => button.tabIndex))).toEqual(new Set([-1]));
    list.focus();
    const press = (key: string) => fireEvent.keyDown(document.activeElement!, { key });
    for (const at of [0, 1, 2]) {
      press("ArrowDown");
      expect(document.activeElement).toBe(buttons[at]);
    }
    press("ArrowUp");
    expect(document.activeElement).toBe(buttons[1]);
  });
});

describe("the rows of the decision log", () => {
  it("leave no gap below a row that was measured before it had its final height", () => {
    const tall = vi.spyOn(HTMLElement.prototype, "offsetHeight", "get").mockReturnValue(115);
    show(<DecisionLog decisions={VIEWS.decisions} onSelect={() => {}} height={400} />);
    const rows = screen.getAllByRole("listitem");
    expect(rows.length).toBeGreaterThan(2);
    // They are in the flow of the page, which knows their heights.
    for (const row of rows) expect(row.getAttribute("style")).toBeNull();
    expect(rows[0]!.parentElement!.style.height).toBe("");
    tall.mockRestore();
  });
});

describe("the numbers behind a decision", () => {
  const decision = VIEWS.decisions.find((one) => one.kind === "exploit")!;

  it("are opened beside its reason", () => {
    show(<DecisionLog decisions={[decision]} onSelect={() => {}} height={400} details />);
    expect(screen.queryByText("donor")).toBeNull();
    fireEvent.click(screen.getByRole("button", { name: "details" }));
    expect(screen.getByText("donor").nextSibling!.textContent).toBe("0");
    expect(screen.getByText("params").nextSibling!.textContent).toMatch(/^lr=.*, width=16$/);
  });

  it("leave out numbers that say nothing", () => {
    const bare: Decision = {
      ...decision,
      payload: { trial: 3, checkpoint: "", mutations: {}, held: false, failure: null },
    };
    expect(factsOf(bare)).toEqual([]);
  });

  it("are filtered by the kinds in the address", () => {
    expect(parseKinds("stop,explode,exploit")).toEqual(["stop", "exploit"]);
    expect(parseKinds(null)).toEqual([]);
  });
});

describe("what went wrong", () => {
  const counts = { pending: 0, running: 0, paused: 0, completed: 20, stopped: 6, failed: 1, cancelled: 0 };
  const broken = VIEWS.trials.map((trial) =>
    trial.number === 7
      ? {
          ...trial,
          state: "failed" as const,
          reason: "gave up",
          error: { message: "RuntimeError: boom\nmore" } as Trial["error"],
        }
      : trial,
  );
  const base = {
    state: "completed" as const,
    error: "trial 7: RuntimeError: boom",
    reason: "all 27 trials ended",
    counts,
    trials: 27,
  };

  it("is a line with a link where one trial of a completed run has failed", () => {
    const selected: number[] = [];
    show(
      <FailureNotice
        experiment={base}
        first={broken.find(hasFailed)}
        onSelect={(n) => selected.push(n)}
        onShowFailed={() => {}}
      />,
    );
    expect(screen.queryByRole("alert")).toBeNull();
    expect(screen.getByText("1 of 27 trials failed:").parentElement!.textContent).toContain("RuntimeError: boom");
    fireEvent.click(screen.getByRole("button", { name: "Show trial 7" }));
    expect(selected).toEqual([7]);
    expect(screen.getByText("All 27 trials ended")).toBeTruthy();
  });

  it("counts the trials of each error, since it is not the same for all", () => {
    const failed = (messages: readonly string[]) =>
      messages.map((message, number) => ({ ...broken[number]!, error: { message } as Trial["error"] }));
    const notice = (messages: readonly string[], known = true) => {
      const failures = failed(messages);
      cleanup();
      show(
        <FailureNotice
          experiment={{ ...base, counts: { ...counts, failed: messages.length } }}
          first={failures[0]}
          failures={known ? failures : undefined}
          onSelect={() => {}}
          onShowFailed={() => {}}
        />,
      );
      return screen.getByText(/trials failed/).parentElement!.textContent;
    };
    const nan = "ValueError: loss is NaN";
    const mixed = ["MemoryError: CUDA\nmore", nan, nan, "RuntimeError: boom", nan, "MemoryError: CUDA"];
    expect(notice(mixed)).toContain(
      "6 of 27 trials failed: 3 × ValueError: loss is NaN; 2 × MemoryError: CUDA; 1 × RuntimeError: boom Show",
    );
    expect(notice(["a", "b", "c", "d", "e", "e"])).toContain("failed: 2 × e; 1 × a; 1 × b; 2 with other errors Show");
    expect(notice([nan, nan])).toContain("2 of 27 trials failed: ValueError: loss is NaN Show");
    expect(notice(mixed, false)).toContain("6 of 27 trials failed; the first one: MemoryError: CUDA Show");
  });

  it("is an alert with links where the experiment has failed", () => {
    let all = 0;
    show(
      <FailureNotice
        experiment={{ ...base, state: "failed", counts: { ...counts, failed: 3 } }}
        first={broken.find(hasFailed)}
        onSelect={() => {}}
        onShowFailed={() => all++}
      />,
    );
    expect(screen.getByRole("alert").textContent).toContain("Trial 7: RuntimeError: boom");
    fireEvent.click(screen.getByRole("button", { name: "Show all 3 failed trials" }));
    expect(all).toBe(1);
  });

  it("is not shown if nothing has failed", () => {
    show(
      <FailureNotice
        experiment={{ ...base, error: null, reason: "", counts: { ...counts, failed: 0 } }}
        first={undefined}
        onSelect={() => {}}
        onShowFailed={() => {}}
      />,
    );
    expect(screen.queryByRole("button")).toBeNull();
    expect(screen.queryByText(/failed/)).toBeNull();
  });
});

describe("the training that was saved", () => {
  const asha = {
    max_t: null,
    scheduler: { type: "auto" },
    resolved: { scheduler: { type: "asha", max_t: 27 }, search: null, constraints: {}, budget: null },
    time_attr: "training_iteration",
  };

  it("is counted over the trials that completed or were stopped", () => {
    const saved = savedTraining(VIEWS.trials, asha)!;
    const counts = countsOf(VIEWS.trials);
    expect(savedOfMany(saved.done, { ...asha, counts })).toEqual(saved);
    expect(savedOfMany(null, { ...asha, counts })).toBeNull();
    expect(savedOfMany(0, { ...asha, counts })).toBeNull();
    expect(savedOfMany(saved.full, { ...asha, counts })).toBeNull();
    const ended = VIEWS.trials.filter((trial) => trial.state === "completed" || trial.state === "stopped");
    expect(saved.full).toBe(27 * ended.length);
    expect(saved.done).toBe(ended.reduce((sum, trial) => sum + trial.reports, 0));
    expect(savedShare({ done: 25, full: 100 })).toBe("75 %");
    expect(savedTraining(VIEWS.trials, { ...asha, max_t: 9 })!.full).toBe(9 * ended.length);
  });

  it("includes what trials repeated after a restart, and no iterations of other trials", () => {
    const trial = (state: Trial["state"], iteration: number, reports: number) =>
      ({ ...VIEWS.trials[0]!, state, iteration, reports }) as const;
    const trials = [trial("stopped", 3, 12), trial("completed", 27, 9), trial("running", 1, 5), trial("failed", 9, 9)];
    expect(savedTraining(trials, asha)).toEqual({ done: 12 + 9, full: 54 });
    expect(savedTraining([trial("stopped", 3, 30), trial("completed", 27, 27)], asha)).toBeNull();
  });

  it("is not shown if it cannot be computed", () => {
    expect(savedTraining([{ ...VIEWS.trials[0]!, state: "stopped", iteration: 0, reports: 0 }], asha)).toBeNull();
    expect(savedTraining(VIEWS.trials, { ...asha, resolved: null })).toBeNull();
    expect(savedTraining(VIEWS.trials, { ...asha, time_attr: "epoch" })).toBeNull();
    expect(
      savedTraining(
        VIEWS.trials.filter((trial) => trial.state === "completed"),
        asha,
      ),
    ).toBeNull();
  });
});

describe("small parts", () => {
  it("says where the ranks of a segment ran", () => {
    const rank = (n: number, host: string, gpus: number[]) => ({ rank: n, node: "f00", host, pid: 7, gpus });
    expect(places({ placement: { ranks: [rank(0, "a", [0]), rank(1, "b", [0])] } })).toBe(
      " · 2 ranks on a, b (2 GPUs)",
    );
    expect(places({ placement: { ranks: [rank(0, "a", [])] } })).toBe(" · 1 rank on a");
    expect(places({ placement: {} })).toBe("");
  });

  it("puts progress in words", () => {
    const counts = { pending: 0, running: 2, paused: 0, completed: 1, stopped: 12, failed: 0, cancelled: 0 };
    show(<Progress experiment={{ state: "running", counts, trials: 15, num_samples: 16 }} words />);
    expect(screen.getByRole("img").getAttribute("aria-label")).toBe(
      "13 of 16 trials ended: 1 completed, 12 stopped, 2 running",
    );
    expect(screen.getByText("1 to come")).toBeTruthy();
  });

  it("shows how much of the training budget is spent", () => {
    const counts = { ...NONE, running: 2, paused: 18 };
    const resolved = { budget: "20 full trainings" } as never;
    const running = {
      state: "running",
      counts,
      trials: 20,
      num_samples: 100,
      resolved,
      budget_spent: 0.52,
    } as const;
    const { container } = show(<Progress experiment={running} words />);
    expect(screen.getByText("52 % of the training budget").title).toBe("20 full trainings");
    const bar = screen.getByRole("img");
    expect(bar.getAttribute("aria-label")).toBe(
      "52 % of the training budget spent, 0 of 100 trials ended: 2 running, 18 paused",
    );
    const widths = [...bar.children].map((part) => parseFloat((part as HTMLElement).style.width));
    expect(widths.reduce((sum, width) => sum + width, 0)).toBeCloseTo(52);
    expect(container.textContent).toContain("80 to come, if the budget allows");
    expect([spentShare(running), spentShare({ ...running, state: "completed" })]).toEqual([0.52, null]);
  });

  it("is full once the budget has ended the search", () => {
    const counts = { ...NONE, completed: 4, stopped: 40 };
    const resolved = { budget: "20 full trainings" } as never;
    show(<Progress experiment={{ state: "completed", counts, trials: 44, num_samples: 100, resolved }} />);
    expect(screen.getByText("44/44")).toBeTruthy();
    const widths = [...screen.getByRole("img").children].map((part) => parseFloat((part as HTMLElement).style.width));
    expect(widths.reduce((sum, width) => sum + width, 0)).toBeCloseTo(100);
  });

  it("says what the next trials wait for", () => {
    const held = (fields: object) =>
      heldWords({ state: "running", counts: { ...NONE, running: 2 }, trials: 2, num_samples: 9, ...fields });
    const limits = (max_concurrent_trials: number | null) => ({ limits: { max_concurrent_trials } as never });
    expect(held({ state: "paused" })).toBe(" after a resume");
    expect(held({ ...limits(2), resolved: { budget: "4 full trainings" } as never })).toBe(", if the budget allows");
    expect(held(limits(2))).toBe(", at most 2 at a time");
    expect(held(limits(3))).toBe("");
    expect(held(limits(null))).toBe("");
  });

  it("promises no trials of an experiment that has ended", () => {
    const counts = { ...NONE, completed: 12 };
    show(<Progress experiment={{ state: "cancelled", counts, trials: 12, num_samples: 16 }} words />);
    expect(screen.getByText("4 never started")).toBeTruthy();
    expect(screen.queryByText(/to come/)).toBeNull();
  });

  it("counts trials that users added on top of those that were asked for", () => {
    const counts = { ...NONE, completed: 5 };
    show(<Progress experiment={{ state: "completed", counts, trials: 5, num_samples: 3 }} />);
    expect(screen.getByText("5/5")).toBeTruthy();
  });

  it("points at the field that a problem is about", () => {
    const problem = {
      type: "about:blank",
      title: "Invalid",
      status: 422,
      detail: "the spec has a mistake",
      request_id: null,
      errors: [{ pointer: "/space/lr/lower", message: "must be above 0" }],
    };
    show(<ProblemBox error={new ApiError(422, "the spec has a mistake", problem)} what="experiment" />);
    expect(screen.getByRole("alert").textContent).toContain("/space/lr/lower: must be above 0");
  });

  it("writes domains as the Python call does", () => {
    expect(domainWords({ type: "loguniform", lower: 1e-4, upper: 0.1 })).toBe("loguniform(1e-4, 0.1)");
    expect(domainWords({ type: "choice", categories: [16, 32] })).toBe("choice([16,32])");
    expect(domainWords(3)).toBe("3");
    const sgd = { name: "sgd", momentum: { type: "uniform", lower: 0, upper: 0.9 } };
    expect(domainWords({ type: "choice", categories: [sgd, "adam"] })).toBe(
      "choice([{name: sgd, momentum: uniform(0, 0.9)}, adam])",
    );
    const inner = { lr: { type: "uniform", lower: 0, upper: 1 }, nested: { layers: 3 } };
    expect(domainsOf({ depth: 2, loop: inner })).toEqual([
      ["depth", "2"],
      ["loop/lr", "uniform(0, 1)"],
      ["loop/nested/layers", "3"],
    ]);
    const odd = {
      grid: { grid_search: [1, 2] },
      none: {},
      group: { type: { type: "choice", categories: [1] }, lr: 1 },
    };
    expect(domainsOf(odd).map(([path]) => path)).toEqual(["grid", "none", "group/type", "group/lr"]);
    expect(learnedWords({ learned_from: ["digits", "digits-2"] })).toBe("digits, digits-2");
    expect(learnedWords({ learned_from: [] })).toBe("nothing; a note under Decisions says why");
  });
});

describe("a lineage", () => {
  const item = { source_checkpoint_id: null, source_trial_number: null, params: { lr: 0.1 }, changes: {} };
  const found: Lineage = {
    trial_id: "trl_5",
    trial_number: 5,
    items: [
      {
        ...item,
        id: "a",
        trial_id: "trl_0",
        trial_number: 0,
        ordinal: 1,
        cause: "start",
        start_iteration: 0,
        end_iteration: 10,
      },
      {
        ...item,
        id: "b",
        trial_id: "trl_5",
        trial_number: 5,
        ordinal: 2,
        cause: "exploit",
        start_iteration: 10,
        end_iteration: 11,
        changes: { lr: { before: 0.1, after: 0.12 } },
      },
      {
        ...item,
        id: "c",
        trial_id: "trl_5",
        trial_number: 5,
        ordinal: 3,
        cause: "resume",
        start_iteration: 11,
        end_iteration: 11,
      },
    ],
    schedule: [
      { iteration: 0, trial_number: 0, params: { lr: 0.1 } },
      { iteration: 10, trial_number: 5, params: { lr: 0.12 } },
    ],
  };

  it("says which trials the weights come from, and which parameters changed on the way", () => {
    const selected: number[] = [];
    show(<LineageOf labels={{}} found={found} onSelect={(number) => selected.push(number)} />);
    expect(screen.getAllByRole("listitem").map((one) => one.textContent)).toEqual([
      "Trial 0, iterations 1 to 10 · startedlr=0.1",
      "Trial 5, iteration 11 · exploit of trial 0lr 0.1 → 0.12",
      "Trial 5, at iteration 11 · resumedsame configuration",
    ]);
    expect(screen.getByText("Through one other trial")).toBeTruthy();
    expect(screen.getByText("after iteration 10")).toBeTruthy();
    fireEvent.click(screen.getByRole("button", { name: "Trial 0" }));
    expect(selected).toEqual([0]);
  });

  it("shows what the index of a choice stands for", () => {
    const first = { ...found.items[0]!, params: { optimizer: 1 } };
    const second = { ...found.items[1]!, changes: { optimizer: { before: 1, after: 0 } } };
    const labels = { optimizer: ["sgd", "adam"] };
    show(<LineageOf found={{ ...found, items: [first, second] }} labels={labels} onSelect={() => {}} />);
    expect(screen.getAllByRole("listitem").map((one) => one.lastChild!.textContent)).toEqual([
      "optimizer=adam",
      "optimizer adam → sgd",
    ]);
  });

  it("is short if no weights were taken over, and says if there are no weights yet", () => {
    show(
      <LineageOf
        labels={{}}
        found={{ ...found, items: found.items.slice(1), schedule: found.schedule.slice(1) }}
        onSelect={() => {}}
      />,
    );
    expect(screen.getByText("Only its own training")).toBeTruthy();
    expect(screen.queryByText(/Schedule/)).toBeNull();
    show(<LineageOf labels={{}} found={{ ...found, items: [] }} onSelect={() => {}} />);
    expect(screen.getByText("It has no weights yet.")).toBeTruthy();
  });
});

describe("the legend of completed trials", () => {
  it("counts every trial once, by the states that the top of the page counts", () => {
    const [done, cut] = [
      { state: "completed" as const, best_value: 0.9, feasible: null },
      { state: "stopped" as const, best_value: 0.5, feasible: null },
    ];
    const failed = { ...cut, state: "failed" as const };
    const { container, unmount } = show(
      <FinishedLegend trials={[done, cut, cut, failed, { ...cut, best_value: null }]} heat />,
    );
    expect(container.querySelector("p")!.textContent).toBe(
      " 1 completed 2 stopped, 1 failed: not trained to the end1 trial has no resultpale areas: few completed trials nearby",
    );
    unmount();
    show(<FinishedLegend trials={[done]} />);
    expect(screen.queryByText(/completed/)).toBeNull();
  });

  it("has no symbols where all trials are drawn as lines", () => {
    const [done, cut] = [
      { state: "completed" as const, best_value: 0.9, feasible: null },
      { state: "stopped" as const, best_value: 0.5, feasible: null },
    ];
    const { container } = show(<FinishedLegend trials={[done, cut]} symbols={false} />);
    expect(container.querySelector("i")).toBeNull();
    expect(container.textContent).toContain("1 stopped: not trained to the end");
  });

  it("names those that violate the constraints", () => {
    const done = { state: "completed" as const, best_value: 0.9, feasible: true };
    const { container } = show(<FinishedLegend trials={[done, done, { ...done, feasible: false }]} />);
    expect(container.querySelector("p")!.textContent).toBe(" 2 completed× 1 outside the constraints");
  });
});

describe("the importance of parameters", () => {
  it("has a bar for each, to the scale of 100 %", () => {
    show(
      <Shares
        found={{
          metric: "accuracy",
          needed: 10,
          trials: 12,
          completed: 12,
          stopped: 0,
          repeats: 0,
          left_out: 0,
          items: [
            { parameter: "lr", share: 0.8 },
            { parameter: "width", share: 0.2 },
          ],
        }}
        caution={null}
      />,
    );
    const list = screen.getByLabelText("Importance of parameters for accuracy");
    expect([...list.querySelectorAll("dd")].map((one) => one.textContent)).toEqual(["80 %", "20 %"]);
    expect([...list.querySelectorAll("i")].map((one) => one.style.width)).toEqual(["80%", "20%"]);
  });

  it("says why it is only a hint", () => {
    const found = {
      metric: "accuracy",
      needed: 10,
      trials: 40,
      completed: 20,
      stopped: 20,
      repeats: 0,
      left_out: 0,
      items: [
        { parameter: "lr", share: 0.997 },
        { parameter: "width", share: 0.003 },
      ],
    };
    const experiment = (completed: number, stopped: number, type = "asha") =>
      ({
        counts: { completed, stopped, failed: 1 },
        trials: completed + stopped + 1,
        scheduler: { type: "auto" },
        resolved: { scheduler: { type }, search: null, constraints: {}, budget: null },
      }) as unknown as Experiment;
    expect(cautionOf(found, experiment(20, 20))).toBeNull();
    expect(cautionOf({ ...found, completed: 19, stopped: 21 }, experiment(19, 21))).toMatch(
      /^21 of these 40 trials were stopped early/,
    );
    expect(cautionOf({ ...found, stopped: 0 }, experiment(40, 400)), "only completed trials were chosen").toBeNull();
    const early = [{ state: "completed" as const }, { state: "stopped" as const }];
    expect(earlyWords(experiment(20, 19), early)).toBeNull();
    expect(earlyWords({ ...experiment(20, 19), scheduler: { type: "pbt" }, resolved: null }, early)).toMatch(
      /^Trials may change these parameters while they train\. The plots show the last values/,
    );
    expect(earlyWords(experiment(20, 20), early), "one more failed").toMatch(/^21 of 41 trials were not trained/);
    expect(earlyWords(experiment(1, 39), early.slice(0, 1))).toBeNull();
    const none = { ...experiment(2, 39), counts: { ...NONE, completed: 2, stopped: 39 }, trials: 41 };
    expect(earlyWords(none, early)).toMatch(/^39 of 41 trials were stopped early, so most values/);
    const mixed = { ...experiment(1, 30), counts: { ...NONE, completed: 1, stopped: 30, failed: 8, paused: 2 } };
    expect(earlyWords({ ...mixed, trials: 41 }, early)).toMatch(
      /^40 of 41 trials were not trained to the end \(30 stopped, 8 failed, 2 paused\), so most values/,
    );
    expect(cautionOf({ ...found, completed: 10, stopped: 20 }, experiment(10, 20))).toMatch(
      /^30 of these 40 trials were not trained to the end: 20 stopped early, 10 failed or cancelled\. Their values/,
    );
    expect(cautionOf({ ...found, trials: 15, stopped: 0 }, experiment(15, 0))).toMatch(
      /^15 trials are few for 2 parameters/,
    );
    for (const bred of ["pbt", "pb2"])
      expect(cautionOf(found, experiment(8, 0, bred))).toMatch(/^The scheduler changed values during training/);
    show(<Shares found={found} caution="Because." />);
    expect(screen.getByText("This is only a hint.").parentElement!.textContent).toContain("Because.");
    expect(screen.getByText("< 1 %")).toBeTruthy();
    expect(screen.getByText(/^PED-ANOVA over/).textContent).toBe(
      "PED-ANOVA over 40 trials that have ended with a result: 20 trained to the end, 20 stopped early.",
    );
  });

  it("says which trials it was computed from", () => {
    const found = {
      metric: "loss",
      needed: 10,
      trials: 12,
      completed: 12,
      stopped: 0,
      repeats: 0,
      left_out: 0,
      items: [],
    };
    expect(sourceWords(found)).toBe(", all trained to the end.");
    expect(sourceWords({ ...found, completed: 7, stopped: 4, repeats: 3 })).toBe(
      ": 7 trained to the end, 4 stopped early, 1 failed or cancelled. 3 repeats do not count separately: the mean of a trial and its repeats is one result.",
    );
  });

  it("says when it will be known", () => {
    const none = { metric: "accuracy", needed: 10, completed: 1, stopped: 0, repeats: 0, left_out: 0, items: [] };
    show(<Shares found={{ ...none, trials: 1 }} caution={null} />);
    expect(screen.getByText("Shown once 10 trials have ended with a result; 1 has so far.")).toBeTruthy();
    cleanup();
    show(<Shares found={{ ...none, trials: 8 }} caution={null} ended />);
    expect(screen.getByText("Too few trials have ended with a result: 8, and 10 are needed.")).toBeTruthy();
    cleanup();
    show(<Shares found={{ ...none, trials: 4 }} caution={null} chosen />);
    expect(screen.getByText("4 of the chosen trials have ended with a result; 10 are needed.")).toBeTruthy();
  });
});

describe("the set-up", () => {
  const asked = {
    space: {},
    search: { type: "auto" },
    scheduler: { type: "auto" },
    scaling: {},
    limits: {},
    tags: { team: "vision" },
    notes: "",
    max_t: null,
    objectives: [
      { metric: "accuracy", mode: "max" },
      { metric: "latency", mode: "min" },
    ],
  } as unknown as Experiment;

  it("names every objective", () => {
    show(<Setup experiment={{ ...asked, resolved: null }} />);
    expect(screen.getByText("Objectives").nextSibling!.textContent).toBe("max accuracy, min latency");
  });

  it("shows what auto stands for", () => {
    show(
      <Setup
        experiment={{
          ...asked,
          resolved: {
            scheduler: { type: "freeze_thaw", max_t: 27, budget: 10 },
            search: null,
            constraints: {},
            budget: null,
          },
        }}
      />,
    );
    const section = screen.getByRole("heading", { name: "Scheduler (auto)" }).parentElement!;
    expect(section.textContent).toContain("freeze_thaw");
    expect(section.textContent).toContain("budget10");
    expect(screen.getByText("none: the scheduler proposes the configurations")).toBeTruthy();
    expect(screen.getByText("27 × ", { exact: false })).toBeTruthy();
  });

  it("shows the requested options if an older version has not resolved them", () => {
    show(<Setup experiment={{ ...asked, resolved: null }} />);
    expect(screen.getAllByText("auto")).toHaveLength(2);
  });
});

describe("the runs of the best configuration", () => {
  it("have a mean, its error, the single values with links, and the noise", () => {
    const onSelect = vi.fn();
    const runs = {
      trials: [12, 101],
      values: [0.92, 0.906],
      mean: 0.913,
      error: 0.00612,
      noise: 0.0121,
      pairs: 7,
      repeated: [],
      single: null,
      dropped: [],
    };
    show(<Runs experiment={EXPERIMENT} runs={runs} onSelect={onSelect} />);
    expect(document.body.textContent).toContain(
      "Mean of 2 runs: 0.913, from trial 12 (0.92), trial 101 (0.906). Given these runs, the standard deviation of the " +
        "configuration's expected accuracy is 0.0061. The accuracy of a configuration differs by about 0.012 from run to run (standard deviation).",
    );
    fireEvent.click(screen.getByText("trial 101"));
    expect(onSelect).toHaveBeenCalledWith(101);
  });

  const RUNS = {
    trials: [2, 41],
    values: [204.975, 215.654],
    mean: 210.315,
    error: 6.12,
    noise: 9.9,
    pairs: 4,
    repeated: [{ trials: [2, 41], mean: 210.315, expected: 204.4 }],
    single: { middle: 150, weight: 0.8 },
    dropped: [],
  };

  it("have an expected value, and words that explain the ±", () => {
    show(<Runs experiment={EXPERIMENT} runs={RUNS} onSelect={() => {}} />);
    expect(document.body.textContent).toContain(
      "Mean of 2 runs: 210.315, from trial 2 (204.975), trial 41 (215.654). Given these runs, the configuration's " +
        "expected accuracy is 204.4 ± 6.1 (± is its standard deviation). The accuracy of a configuration differs by " +
        "about 9.9 from run to run (standard deviation).",
    );
  });

  it("are named in the panel of each of their trials, with the expected value that ranks them", () => {
    const experiment = { metric: "accuracy", best: { runs: RUNS } as unknown as Experiment["best"] };
    const factsAbout = (number: number, best_value: number, repeat_of: number | null) => {
      const facts = repeatFacts({ number, best_value, repeat_of }, experiment, ", place 1 of 44", () => {});
      cleanup();
      show(
        facts.map(([name, value]) => (
          <p key={name}>
            {name}: {value}
          </p>
        )),
      );
      return screen.getAllByText(/^(Repeat|Expected)/).map((one) => one.textContent);
    };
    const expected = "Expected accuracy: 204.4, from the mean 210.315 of 2 runs, place 1 of 44";
    expect(factsAbout(2, 204.975, null)).toEqual(["Repeated as: trial 41", expected]);
    expect(factsAbout(41, 215.654, 2)).toEqual(["Repeats: trial 2", expected]);
    expect(factsAbout(7, 200, null)).toEqual(["Expected accuracy: 190, from a single run, place 1 of 44"]);
    expect(
      repeatFacts({ number: 7, best_value: 200, repeat_of: null }, { metric: "accuracy", best: null }, "", () => {}),
    ).toEqual([]);
  });
});

describe("trials that failed before they had a result", () => {
  it("are found, and said to be left out", () => {
    const objective = {
      id: "objective:loss",
      label: "best loss",
      objective: true,
      optional: true,
      categories: [],
      range: { min: 0, max: 1, log: false },
    };
    const trial = (number: number, state: Trial["state"], best_value: number | null) =>
      ({ number, state, best_value, last: {} }) as unknown as Trial;
    const trials = [
      trial(0, "completed", 0.3),
      trial(1, "failed", null),
      trial(2, "failed", 0.5),
      trial(3, "running", null),
      trial(4, "cancelled", null),
    ];
    const empty = valueless(trials, [objective]);
    expect(empty.map(({ number }) => number)).toEqual([1, 4]);
    expect(emptyWords(empty, false)).toBe("1 failed and 1 cancelled trials without a result are left out.");
    expect(emptyWords(empty.slice(0, 1), true)).toBe('1 failed trial without a result is drawn to "no value".');
  });

  it("are named if the best trial is one that failed later", () => {
    expect(unfinishedWords(4, { state: "failed", iteration: 3 })).toBe(
      "Trial 4 failed after iteration 3: it has a good value, but did not train to its end.",
    );
  });
});
