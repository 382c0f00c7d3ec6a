import { MantineProvider } from "@mantine/core";
import { fireEvent, render, screen, within } from "@testing-library/react";
import type { ReactNode } from "react";
import { describe, expect, it } from "vitest";
import { ApiError } from "../api/client";
import { fold, nothing, story } from "../test/run";
import { DecisionLog } from "./DecisionLog";
import { ProblemBox } from "./Problem";
import { Progress } from "./Progress";
import { domainWords } from "./Setup";
import { places } from "./TrialDetails";
import { TrialTable } from "./TrialTable";

const show = (node: ReactNode) => render(<MantineProvider>{node}</MantineProvider>);
const VIEWS = fold(nothing(), story(300));
const EXPERIMENT = { metric: "accuracy", mode: "max" as const, time_attr: "training_iteration" };

function table(selected: number[] = [], trials = VIEWS.trials) {
  show(<TrialTable experiment={EXPERIMENT} trials={trials} theme="light" selected={null} onSelect={(n) => selected.push(n)} onPoint={() => {}} />);
  return () => screen.getAllByRole("row").slice(1).map((row) => within(row).getAllByRole("cell").map((cell) => cell.textContent));
}

describe("the trial table", () => {
  it("begins with the best trial and draws only the rows in view", () => {
    const rows = table()();
    const best = [...VIEWS.trials].sort((a, b) => (b.best_value ?? 0) - (a.best_value ?? 0))[0]!;
    expect(rows[0]![0]).toBe(String(best.number));
    expect(rows.length).toBeLessThan(60);
    expect(screen.getByRole("heading").textContent).toBe("Trials · 300");
  });

  it("sorts by a click on a column, and the other way by a second", () => {
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

  it("says so when there is nothing", () => {
    table([], []);
    expect(screen.getByText("No trial has been started yet.")).toBeTruthy();
  });
});

describe("the decision log", () => {
  it("gives every decision its reason, newest first", () => {
    show(<DecisionLog decisions={VIEWS.decisions} onSelect={() => {}} height={400} />);
    const items = screen.getAllByRole("listitem").map((item) => item.textContent);
    expect(items[0]).toContain("all samples have ended");
    expect(items.some((text) => text.includes("stop") && text.includes("is below the cut"))).toBe(true);
  });
});

describe("small parts", () => {
  it("says where the ranks of a segment ran", () => {
    const rank = (n: number, host: string, gpus: number[]) => ({ rank: n, node: "f00", host, pid: 7, gpus });
    expect(places({ placement: { ranks: [rank(0, "a", [0]), rank(1, "b", [0])] } })).toBe(" · 2 ranks on a, b (2 GPUs)");
    expect(places({ placement: { ranks: [rank(0, "a", [])] } })).toBe(" · 1 rank on a");
    expect(places({ placement: {} })).toBe("");
  });

  it("puts progress in words", () => {
    const counts = { pending: 0, running: 2, paused: 0, completed: 1, stopped: 12, failed: 0, cancelled: 0 };
    show(<Progress experiment={{ counts, trials: 15, num_samples: 16 }} words />);
    expect(screen.getByRole("img").getAttribute("aria-label")).toBe("13 of 16 trials ended: 1 completed, 12 stopped, 2 running");
    expect(screen.getByText("1 to come")).toBeTruthy();
  });

  it("points at the field that a problem is about", () => {
    const problem = { type: "about:blank", title: "Invalid", status: 422, detail: "the spec has a mistake", errors: [{ pointer: "/space/lr/lower", message: "must be above 0" }] };
    show(<ProblemBox error={new ApiError(422, "the spec has a mistake", problem)} what="experiment" />);
    expect(screen.getByRole("alert").textContent).toContain("/space/lr/lower: must be above 0");
  });

  it("writes domains as the Python call does", () => {
    expect(domainWords({ type: "loguniform", lower: 1e-4, upper: 0.1 })).toBe("loguniform(1e-4, 0.1)");
    expect(domainWords({ type: "choice", categories: [16, 32] })).toBe("choice([16,32])");
    expect(domainWords(3)).toBe("3");
  });
});
