import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider, skipToken, useQuery } from "@tanstack/react-query";
import { act, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { useState, type ReactNode } from "react";
import { MemoryRouter, useLocation } from "react-router";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api, ApiError } from "../../api/client";
import { exactly, exactText } from "../../api/exact";
import type { Experiment, Trial } from "../../api/types";
import { keys } from "../../live/keys";
import { type } from "../../test/typing";
import { Actions, BulkActions } from "./Actions";
import { TrialActions } from "./TrialActions";

const EXPERIMENT = {
  id: "exp_1",
  name: "digits",
  state: "completed",
  notes: "",
  tags: {},
  priority: 0,
  weight: 1,
  num_samples: 3,
  revision: 4,
  trials: 3,
  max_t: 27,
  time_attr: "training_iteration",
  limits: { max_concurrent_trials: 4, repeats: 0 },
  space: { lr: { type: "loguniform", lower: 1e-4, upper: 0.1 } },
  labels: {},
  objectives: [],
  scheduler: {},
  best: { params: { lr: 0.01 } },
  actions: ["continue", "edit", "enqueue", "archive", "delete"],
} as unknown as Experiment;

const show = (node: ReactNode) =>
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>{node}</MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );

const Where = () => <p>{useLocation().pathname}</p>;

const menu = () => {
  fireEvent.click(screen.getByRole("button", { name: "More actions" }));
  return screen.getAllByRole("menuitem").map((item) => item.querySelector("b")!.textContent);
};

beforeEach(() => {
  vi.spyOn(api, "session").mockReturnValue(new Promise(() => {}));
  vi.spyOn(api, "exactExperiment").mockResolvedValue(EXPERIMENT);
});
afterEach(() => void vi.restoreAllMocks());

describe("the actions of an experiment", () => {
  it("are those that its state allows", () => {
    show(<Actions experiment={EXPERIMENT} />);
    expect(screen.getByRole("button", { name: "Continue" })).toBeTruthy();
    expect(screen.queryByRole("button", { name: "Pause" })).toBeNull();
    expect(menu()).toEqual(["Try a configuration", "Edit", "Fork", "Clone", "Archive", "Delete"]);
  });

  it("distinguish cancelling from killing", async () => {
    const running = {
      ...EXPERIMENT,
      state: "running",
      actions: ["pause", "cancel", "kill", "edit", "enqueue"],
    } as Experiment;
    show(<Actions experiment={running} />);
    expect(menu()).toEqual(["Add trials", "Try a configuration", "Edit", "Fork", "Clone", "Kill"]);
    expect(
      screen.getByText("End the experiment at once, without waiting for reports or last checkpoints"),
    ).toBeTruthy();
    fireEvent.click(screen.getByRole("button", { name: "Cancel" }));
    expect(await screen.findByText(/end at their next report/)).toBeTruthy();
  });

  it("keep the focus of the keyboard beside a button that is gone after it was used", async () => {
    const running = { ...EXPERIMENT, state: "running", actions: ["pause", "cancel"] } as Experiment;
    vi.spyOn(api, "act").mockResolvedValue({ ...running, state: "pausing", actions: ["resume", "cancel"] } as never);
    function Page() {
      const { data } = useQuery<Experiment>({ queryKey: keys.experiment("exp_1"), queryFn: skipToken });
      return <Actions experiment={data ?? running} />;
    }
    show(<Page />);
    const pause = screen.getByRole("button", { name: "Pause" });
    pause.focus();
    fireEvent.click(pause);
    const sure = (await screen.findByRole("dialog")).querySelector<HTMLElement>("[data-autofocus]")!;
    sure.focus();
    fireEvent.click(sure);
    await waitFor(() => expect(document.activeElement).toBe(screen.getByRole("button", { name: "Resume" })));
  });

  it("keep what is newer than a late answer, and the question that was opened meanwhile", async () => {
    const at = (state: string, last_event_seq: number, actions: string[]) =>
      ({ ...EXPERIMENT, state, last_event_seq, revision: 0, actions }) as unknown as Experiment;
    let answer = (_: Experiment) => {};
    vi.spyOn(api, "act").mockReturnValue(new Promise((resolve) => (answer = resolve as never)));
    const client = new QueryClient();
    const shown = () => client.getQueryData<Experiment>(keys.experiment("exp_1"))!.state;
    const page = (experiment: Experiment) => (
      <MantineProvider env="test">
        <QueryClientProvider client={client}>
          <MemoryRouter>
            <Actions experiment={experiment} />
          </MemoryRouter>
        </QueryClientProvider>
      </MantineProvider>
    );
    const { rerender } = render(page(at("running", 10, ["pause", "cancel"])));
    fireEvent.click(screen.getByRole("button", { name: "Pause" }));
    fireEvent.click((await screen.findByRole("dialog")).querySelector("[data-autofocus]")!);
    const paused = at("paused", 12, ["resume", "cancel"]);
    client.setQueryData(keys.experiment("exp_1"), paused); // the stream is faster
    rerender(page(paused));
    fireEvent.click(screen.getByRole("button", { name: "Keep it running", hidden: true }));
    fireEvent.click(screen.getByRole("button", { name: "Cancel", hidden: true }));
    expect(await screen.findByText(/Running trials end at their next report/)).toBeTruthy();
    await act(() => Promise.resolve(answer(at("running", 10, ["pause", "cancel"]))));
    expect(shown()).toBe("paused");
    expect(screen.getByText(/Running trials end at their next report/)).toBeTruthy();
  });

  it("do not include new trials while it is being cancelled", () => {
    show(<Actions experiment={{ ...EXPERIMENT, state: "cancelling", actions: ["kill", "edit"] }} />);
    expect(menu()).toEqual(["Edit", "Fork", "Clone", "Kill"]);
  });

  it("do not include new trials if the service offers none, as without the reports that a policy has deleted", () => {
    show(<Actions experiment={{ ...EXPERIMENT, actions: ["edit", "fork", "archive", "delete"] }} />);
    expect(menu()).toEqual(["Edit", "Fork", "Clone", "Archive", "Delete"]);
  });

  it("delete it only after its name was typed", async () => {
    const remove = vi.spyOn(api, "delete").mockResolvedValue(null);
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Delete"));
    const button = await screen.findByRole<HTMLButtonElement>("button", { name: "Delete permanently" });
    expect(button.disabled).toBe(true);
    fireEvent.change(screen.getByLabelText("Type its name to confirm"), { target: { value: "digits" } });
    await act(() => Promise.resolve(fireEvent.click(button)));
    expect(remove).toHaveBeenCalledWith("exp_1");
  });

  it.each([
    ["/experiments/exp_1", "/experiments"],
    ["/settings", "/"],
  ])("leave only the page of a deleted experiment, even if it is missing before the answer: %s", async (page, then) => {
    window.history.pushState(null, "", page);
    let answer = (_: null) => {};
    vi.spyOn(api, "delete").mockReturnValue(new Promise((resolve) => (answer = resolve)));
    const Page = () => {
      const [missing, setMissing] = useState(false);
      return (
        <>
          <button onClick={() => setMissing(true)}>Poll</button>
          {missing || <Actions experiment={EXPERIMENT} />}
        </>
      );
    };
    show(
      <>
        <Where />
        <Page />
      </>,
    );
    menu();
    fireEvent.click(screen.getByText("Delete"));
    fireEvent.change(await screen.findByLabelText("Type its name to confirm"), { target: { value: "digits" } });
    fireEvent.click(screen.getByRole("button", { name: "Delete permanently" }));
    await waitFor(() => expect(api.delete).toHaveBeenCalled());
    fireEvent.click(screen.getByText("Poll"));
    expect(screen.queryByRole("dialog")).toBeNull();
    await act(() => Promise.resolve(answer(null)));
    expect(await screen.findByText(then)).toBeTruthy();
    window.history.pushState(null, "", "/");
  });

  it("try a configuration that begins with the best one, and show every mistake in it", async () => {
    const errors = [
      { pointer: "/configurations/0/lr", message: "7 is above 0.1" },
      { pointer: "/configurations/0/x", message: "not in the search space" },
    ];
    const problem = { type: "about:blank", title: "Bad", status: 422, detail: "2 mistakes", request_id: null, errors };
    const enqueue = vi.spyOn(api, "enqueue").mockRejectedValue(new ApiError(422, "2 mistakes", problem));
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Try a configuration"));
    const field = await screen.findByLabelText<HTMLInputElement>("lr");
    expect(field.value).toBe("0.01");
    fireEvent.change(field, { target: { value: "7" } });
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Try it" }))));
    expect(enqueue).toHaveBeenCalledWith("exp_1", [{ lr: 7 }], expect.anything());
    const alert = await screen.findByRole("alert");
    expect(alert.textContent).toContain("configurations.0.lr: 7 is above 0.1");
    expect(alert.textContent).toContain("configurations.0.x: not in the search space");
    expect(alert.textContent).toContain("It does not fit the search space");
    enqueue.mockRejectedValue(new ApiError(0, "The service is not responding."));
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Try it" }))));
    await waitFor(() =>
      expect(screen.getByRole("alert").textContent).toBe("It could not be requestedThe service is not responding."),
    );
    const [first, again] = enqueue.mock.calls.map(([, , key]) => key);
    expect(first).toBeTruthy();
    expect(again).toBe(first); // so that it is carried out once if only the first answer was lost
  });

  it("try a configuration, with the focus in its first field, and mark the fields that are wrong until they change", async () => {
    const errors = [{ pointer: "/configurations/0/net~1width", message: "7 is above 1" }];
    const problem = { type: "about:blank", title: "Bad", status: 422, detail: "1 mistake", request_id: null, errors };
    vi.spyOn(api, "enqueue").mockRejectedValue(new ApiError(422, "1 mistake", problem));
    const space = { ...EXPERIMENT.space, net: { width: { type: "uniform", lower: 0, upper: 1 } } };
    show(<Actions experiment={{ ...EXPERIMENT, space }} />);
    menu();
    fireEvent.click(screen.getByText("Try a configuration"));
    const [rate, width] = [await screen.findByLabelText("lr"), await screen.findByLabelText("net/width")];
    await waitFor(() => expect(document.activeElement).toBe(rate));
    fireEvent.change(width, { target: { value: "7" } });
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Try it" }))));
    expect((await screen.findByRole("alert")).textContent).toContain("configurations.0.net/width: 7 is above 1");
    expect([rate, width].map((field) => field.getAttribute("aria-invalid"))).toEqual([null, "true"]);
    expect(document.getElementById(width.getAttribute("aria-describedby")!.split(" ")[0]!)!.textContent).toBe(
      "7 is above 1",
    );
    fireEvent.change(width, { target: { value: "0.7" } });
    expect(width.getAttribute("aria-invalid")).toBeNull();
  });

  it("try the best configuration of a nested space, with the parameters of its branch", async () => {
    const enqueue = vi.spyOn(api, "enqueue").mockResolvedValue(EXPERIMENT);
    const unit = { type: "uniform", lower: 0, upper: 1 };
    const net = {
      type: "choice",
      categories: [
        { kind: "mlp", width: unit },
        { kind: "cnn", depth: unit },
      ],
    };
    const best = { params: { "opt/beta": 0.3, net: 0, "net/0/width": 0.5 } };
    const labels = { net: ["mlp", "cnn"] };
    show(<Actions experiment={{ ...EXPERIMENT, space: { opt: { beta: unit }, net }, labels, best: best as never }} />);
    menu();
    fireEvent.click(screen.getByText("Try a configuration"));
    expect((await screen.findByLabelText<HTMLInputElement>("net/mlp/width")).value).toBe("0.5");
    const send = () => act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Try it" }))));
    await send();
    expect(enqueue).toHaveBeenLastCalledWith("exp_1", [best.params], expect.anything());
  });

  it("change its search space, and show mistakes at the field", async () => {
    const errors = [{ pointer: "/space/lr/lower", message: "must be below upper" }];
    const problem = { type: "about:blank", title: "Bad", status: 422, detail: "a mistake", request_id: null, errors };
    const change = vi.spyOn(api, "change").mockRejectedValueOnce(new ApiError(422, "a mistake", problem));
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    const field = await screen.findByLabelText<HTMLTextAreaElement>("Search space");
    const save = screen.getByRole<HTMLButtonElement>("button", { name: "Save" });
    expect([field.value, save.disabled]).toEqual(["lr:\n  type: loguniform\n  lower: 0.0001\n  upper: 0.1\n", true]);
    expect(screen.queryByLabelText("Values of new parameters in the trials so far")).toBeNull();
    fireEvent.change(field, { target: { value: "lr: [" } });
    expect([field.getAttribute("aria-invalid"), save.disabled]).toEqual(["true", true]);
    fireEvent.change(field, { target: { value: "lr: {type: loguniform, lower: 1, upper: 0.1}" } });
    await act(() => Promise.resolve(fireEvent.click(save)));
    expect(change).toHaveBeenLastCalledWith(
      "exp_1",
      { space: { lr: { type: "loguniform", lower: 1, upper: 0.1 } } },
      4,
    );
    expect(await screen.findByText("lr.lower: must be below upper")).toBeTruthy();
    expect(screen.queryByRole("alert")).toBeNull();
    const problemOf = { ...problem, errors: [{ pointer: "/space/net~1width/lower", message: "must be a number" }] };
    change.mockRejectedValueOnce(new ApiError(422, "1 mistake", problemOf));
    await act(() => Promise.resolve(fireEvent.click(save)));
    expect(await screen.findByText("net/width.lower: must be a number")).toBeTruthy();
    fireEvent.change(field, { target: { value: "width: {type: randint, lower: 1, upper: 9}" } });
    expect(screen.queryByText("lr.lower: must be below upper")).toBeNull();
    fireEvent.change(screen.getByLabelText("Values of new parameters in the trials so far"), {
      target: { value: "width: 3" },
    });
    change.mockResolvedValueOnce(EXPERIMENT);
    await act(() => Promise.resolve(fireEvent.click(save)));
    const width = { type: "randint", lower: 1, upper: 9 };
    expect(change).toHaveBeenLastCalledWith("exp_1", { space: { lr: null, width }, assume: { width: 3 } }, 4);
  });

  it("change how often leading configurations are repeated", async () => {
    const change = vi.spyOn(api, "change").mockResolvedValue(EXPERIMENT);
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    const field = await screen.findByLabelText<HTMLInputElement>("Repeats of leading configurations", {
      selector: "input",
    });
    const save = screen.getByRole<HTMLButtonElement>("button", { name: "Save" });
    expect(field.value).toBe("0");
    fireEvent.change(field, { target: { value: "often" } });
    expect([field.getAttribute("aria-invalid"), save.disabled]).toEqual(["true", true]);
    fireEvent.change(field, { target: { value: "auto" } });
    await act(() => Promise.resolve(fireEvent.click(save)));
    expect(change).toHaveBeenLastCalledWith("exp_1", { limits: { repeats: "auto" } }, 4);
  });

  it("keep what was typed into a form if somebody clicks beside it", async () => {
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    fireEvent.change(await screen.findByLabelText("Notes"), { target: { value: "a long story" } });
    fireEvent.click(document.querySelector(".mantine-Modal-overlay")!);
    const beside = document.querySelector(".mantine-Modal-inner")!;
    fireEvent.mouseDown(beside);
    fireEvent.click(beside);
    expect(screen.getByLabelText<HTMLTextAreaElement>("Notes").value).toBe("a long story");
    fireEvent.click(screen.getByRole("button", { name: "Close" }));
    expect(screen.queryByLabelText("Notes")).toBeNull();
  });

  it("say so before a change replaces what somebody else has saved meanwhile", async () => {
    const change = vi.spyOn(api, "change").mockResolvedValue(EXPERIMENT);
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    fireEvent.change(await screen.findByLabelText("Notes"), { target: { value: "mine" } });
    fireEvent.change(screen.getByLabelText("Labels"), { target: { value: "team=a, gpu=h200" } });
    type(screen.getByLabelText<HTMLInputElement>("GPU hours"), "7");
    const theirs = { notes: "theirs,\nin two lines", tags: { team: "b", gpu: "h200" }, weight: 2 };
    vi.spyOn(api, "exactExperiment").mockResolvedValue({ ...EXPERIMENT, ...theirs, revision: 5 });
    const save = () => act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Save" }))));
    await save();
    const said = (await screen.findByRole("alert")).querySelectorAll("li");
    const words = "somebody else has changed this meanwhile. Save again to replace: ";
    expect([...said].map((one) => one.textContent)).toEqual([
      `notes: ${words}theirs,\nin two lines`,
      `tags.team: ${words}b`,
    ]);
    type(screen.getByLabelText<HTMLInputElement>("Weight"), "3");
    await save();
    expect((await screen.findByText("weight")).parentElement!.textContent).toBe(`weight: ${words}2`);
    expect(change).not.toHaveBeenCalled();
    const before = EXPERIMENT.weight;
    type(screen.getByLabelText<HTMLInputElement>("Weight"), String(before)); // as it was when the dialog was opened
    await save();
    const mine = { notes: "mine", tags: { team: "a", gpu: "h200" }, weight: before, limits: { gpu_hours: 7 } };
    expect(change).toHaveBeenLastCalledWith("exp_1", mine, 5);
  });

  it("say whose notes a change would replace, also if somebody else saves at the same moment", async () => {
    const stale = new ApiError(412, "the experiment has been changed in the meantime: it is at revision 5, not 4");
    const change = vi.spyOn(api, "change").mockRejectedValueOnce(stale).mockResolvedValue(EXPERIMENT);
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    fireEvent.change(await screen.findByLabelText("Notes"), { target: { value: "mine" } });
    vi.spyOn(api, "exactExperiment")
      .mockResolvedValueOnce(EXPERIMENT)
      .mockResolvedValue({ ...EXPERIMENT, notes: "theirs", revision: 5 });
    fireEvent.click(screen.getByRole("button", { name: "Save" }));
    expect((await screen.findByRole("alert")).textContent).toMatch(/Save again to replace: theirs/);
    fireEvent.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(change).toHaveBeenLastCalledWith("exp_1", { notes: "mine" }, 5));
  });

  it("replace a domain that somebody else has replaced by one with other fields", async () => {
    const change = vi.spyOn(api, "change").mockResolvedValue(EXPERIMENT);
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    fireEvent.change(await screen.findByLabelText("Search space"), {
      target: { value: "lr: {type: uniform, lower: 0, upper: 2}" },
    });
    const space = { lr: { type: "quniform", lower: 0, upper: 1, q: 0.1 } };
    vi.spyOn(api, "exactExperiment").mockResolvedValue({ ...EXPERIMENT, space, revision: 5 });
    const save = () => act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Save" }))));
    await save();
    expect(await screen.findByText(/upper: somebody else has changed this meanwhile/)).toBeTruthy();
    await save();
    expect(change).toHaveBeenLastCalledWith("exp_1", { space: { lr: { type: "uniform", lower: 0, upper: 2 } } }, 5);
  });

  it("change its weight and its limits to decimals", async () => {
    const change = vi.spyOn(api, "change").mockResolvedValue(EXPERIMENT);
    show(<Actions experiment={EXPERIMENT} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    const weight = await screen.findByLabelText<HTMLInputElement>("Weight");
    const hours = screen.getByLabelText<HTMLInputElement>("GPU hours");
    type(weight, "0.5");
    type(hours, "10.05");
    expect([weight.value, hours.value]).toEqual(["0.5", "10.05"]);
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Save" }))));
    expect(change).toHaveBeenLastCalledWith("exp_1", { weight: 0.5, limits: { gpu_hours: 10.05 } }, 4);
  });

  it("keep all digits of whole numbers above 2^53", async () => {
    const text = JSON.stringify({ ...EXPERIMENT, space: { seed: { type: "choice", categories: [1, 3] } } });
    const exact = exactly(text.replace("[1,3]", "[1152921504606846977,1152921504606846979]")) as Experiment;
    const rounded = JSON.parse(exactText(exact)) as Experiment;
    vi.spyOn(api, "exactExperiment").mockResolvedValue(exact);
    const change = vi.spyOn(api, "change").mockResolvedValue(EXPERIMENT);
    const { unmount } = show(<Actions experiment={rounded} />);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    const field = await screen.findByLabelText<HTMLTextAreaElement>("Search space");
    expect(field.value).toContain("- 1152921504606846977\n    - 1152921504606846979");
    fireEvent.change(field, { target: { value: field.value.replace("77", "81") } });
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Save" }))));
    expect(exactText(change.mock.lastCall![1])).toContain("[1152921504606846981,1152921504606846979]");
    unmount();
    const enqueue = vi.spyOn(api, "enqueue").mockResolvedValue(EXPERIMENT);
    show(<Actions experiment={rounded} />);
    menu();
    fireEvent.click(screen.getByText("Try a configuration"));
    fireEvent.click(await screen.findByRole("combobox", { name: "seed" }));
    fireEvent.click(await screen.findByRole("option", { name: "1152921504606846979", hidden: true }));
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Try it" }))));
    expect(enqueue).toHaveBeenCalledWith("exp_1", [{ seed: 1152921504606846979n }], expect.anything());
  });

  it("keep all digits of whole numbers above 2^53 that were typed", async () => {
    const enqueue = vi.spyOn(api, "enqueue").mockResolvedValue(EXPERIMENT);
    const space = { seed: { type: "randint", lower: 0, upper: 1000 } };
    show(<Actions experiment={{ ...EXPERIMENT, space, best: null }} />);
    menu();
    fireEvent.click(screen.getByText("Try a configuration"));
    fireEvent.change(await screen.findByLabelText("seed"), { target: { value: "1152921504606846979" } });
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Try it" }))));
    expect(enqueue).toHaveBeenCalledWith("exp_1", [{ seed: 1152921504606846979n }], expect.anything());
  });

  it("continue it with more trials", async () => {
    const go = vi.spyOn(api, "continue").mockResolvedValue(EXPERIMENT);
    show(<Actions experiment={EXPERIMENT} />);
    fireEvent.click(screen.getByRole("button", { name: "Continue" }));
    fireEvent.change(await screen.findByLabelText("Trials to add"), { target: { value: "7" } });
    const [, send] = screen.getAllByRole("button", { name: "Continue" });
    await act(() => Promise.resolve(fireEvent.click(send ?? screen.getByRole("button", { name: "Continue" }))));
    expect(go).toHaveBeenCalledWith("exp_1", 7, expect.anything());
    const key = go.mock.calls[0]![2];
    fireEvent.click(screen.getByRole("button", { name: "Continue" }));
    fireEvent.change(await screen.findByLabelText("Trials to add"), { target: { value: "7" } });
    go.mockRejectedValue(new ApiError(0, "The service is not responding."));
    for (const times of [2, 3]) {
      const [, again] = screen.getAllByRole("button", { name: "Continue" });
      await act(() => Promise.resolve(fireEvent.click(again ?? screen.getByRole("button", { name: "Continue" }))));
      await waitFor(() => expect(go).toHaveBeenCalledTimes(times));
    }
    expect(go.mock.calls[1]![2]).not.toBe(key); // somebody wants seven more
    expect(go.mock.calls[2]![2]).toBe(go.mock.calls[1]![2]); // somebody repeats a request
  });

  it("leave a form alone that was opened before an earlier one got its answer", async () => {
    let answer = (_: Experiment) => {};
    vi.spyOn(api, "continue").mockReturnValue(new Promise((resolve) => (answer = resolve as never)));
    show(<Actions experiment={EXPERIMENT} />);
    fireEvent.click(screen.getByRole("button", { name: "Continue" }));
    fireEvent.submit((await screen.findByLabelText("Trials to add")).closest("form")!);
    await waitFor(() => expect(api.continue).toHaveBeenCalled());
    fireEvent.click(screen.getAllByRole("button", { name: "Close" }).at(-1)!);
    menu();
    fireEvent.click(screen.getByText("Edit"));
    fireEvent.change(await screen.findByLabelText("Notes"), { target: { value: "typed meanwhile" } });
    await act(() => Promise.resolve(answer(EXPERIMENT)));
    expect(await screen.findByText("Requested 10 more trials.")).toBeTruthy();
    expect(screen.getByLabelText<HTMLTextAreaElement>("Notes").value).toBe("typed meanwhile");
  });

  it("open no other page once the form that asked for it was closed", async () => {
    let answer = (_: Experiment) => {};
    vi.spyOn(api, "fork").mockReturnValue(new Promise((resolve) => (answer = resolve as never)));
    show(
      <>
        <Where />
        <Actions experiment={EXPERIMENT} />
      </>,
    );
    menu();
    fireEvent.click(screen.getByText("Fork"));
    fireEvent.submit((await screen.findByLabelText(/^Name/)).closest("form")!);
    await waitFor(() => expect(api.fork).toHaveBeenCalled());
    fireEvent.click(screen.getAllByRole("button", { name: "Close" }).at(-1)!);
    await act(() => Promise.resolve(answer({ ...EXPERIMENT, id: "exp_2" })));
    expect(screen.getByText("/")).toBeTruthy();
  });
});

describe("a viewer", () => {
  const asA = (role: string, node: ReactNode) => {
    vi.spyOn(api, "session").mockResolvedValue({ required: true, name: "ada", role } as never);
    show(node);
  };
  const trial = { id: "trl_1", number: 4, state: "failed", params: {}, actions: ["retry", "fork"] } as unknown as Trial;

  it.each([
    ["an experiment", <Actions experiment={EXPERIMENT} />],
    ["several experiments", <BulkActions experiments={[EXPERIMENT]} />],
    ["a trial", <TrialActions trial={trial} experiment={EXPERIMENT} />],
  ])("is offered no action on %s, as the service refuses them all", async (_, node) => {
    asA("viewer", node);
    await waitFor(() => expect(screen.queryAllByRole("button")).toEqual([]));
    asA("editor", node);
    expect(screen.getAllByRole("button").length).toBeGreaterThan(0);
    await act(() => Promise.resolve());
    expect(screen.getAllByRole("button").length).toBeGreaterThan(0);
  });
});

describe("a question", () => {
  const running = { ...EXPERIMENT, state: "running", actions: ["pause"] } as unknown as Experiment;
  const paused = { ...EXPERIMENT, state: "paused", actions: ["resume"] } as unknown as Experiment;
  const other = (one: Experiment) => ({ ...one, id: "exp_2", name: "letters" });
  const ended = { ...EXPERIMENT, archived_at: null, actions: ["archive"] } as unknown as Experiment;
  const archived = { ...ended, archived_at: "2026-01-02T03:04:05Z", actions: ["unarchive"] } as unknown as Experiment;
  const trial = { id: "trl_1", number: 4, state: "running", params: {}, actions: ["stop"] } as unknown as Trial;
  const stopped = { ...trial, state: "stopped", actions: [] } as unknown as Trial;

  it.each<[string, string, ReactNode, ReactNode, string, string?]>([
    [
      "an experiment",
      "Pause",
      <Actions experiment={running} />,
      <Actions experiment={paused} />,
      "digits: This can no longer be done. It is paused now.",
    ],
    [
      "an experiment that somebody has archived",
      "Archive",
      <Actions experiment={ended} />,
      <Actions experiment={archived} />,
      "digits: Somebody has done this meanwhile.",
    ],
    [
      "an experiment that somebody has continued",
      "Archive",
      <Actions experiment={ended} />,
      <Actions experiment={{ ...running, archived_at: null }} />,
      "digits: This can no longer be done. It is running now.",
    ],
    [
      "one of several experiments",
      "Pause 1",
      <BulkActions experiments={[running, other(paused)]} />,
      <BulkActions experiments={[paused, other(paused)]} />,
      "digits: This can no longer be done. It has changed meanwhile.",
      "Pause 1 experiment?",
    ],
    [
      "several experiments that are no longer listed",
      "Pause 2",
      <BulkActions experiments={[running, other(running)]} />,
      <BulkActions experiments={[]} />,
      "digits, letters: This can no longer be done. They have changed meanwhile.",
      "Pause 2 experiments?",
    ],
    [
      "a trial",
      "Stop",
      <TrialActions trial={trial} experiment={running} />,
      <TrialActions trial={stopped} experiment={running} />,
      "Trial 4: This can no longer be done. It is stopped now.",
    ],
  ])("about %s says so if somebody else was faster", async (_, button, before, after, words, question) => {
    const client = new QueryClient();
    const page = (node: ReactNode) => (
      <MantineProvider env="test">
        <QueryClientProvider client={client}>
          <MemoryRouter>{node}</MemoryRouter>
        </QueryClientProvider>
      </MantineProvider>
    );
    const { rerender } = render(page(before));
    if (button === "Archive") {
      menu();
      fireEvent.click(await screen.findByText(button));
    } else fireEvent.click(screen.getByRole("button", { name: button }));
    const dialog = await screen.findByRole("dialog");
    expect(screen.queryByRole("alert")).toBeNull();
    rerender(page(after));
    expect(screen.getByRole("alert").textContent).toBe(words);
    if (question) expect(dialog.querySelector("h2")!.textContent).toBe(question);
    expect([...dialog.querySelectorAll("button")].map((one) => one.textContent).filter(Boolean)).toEqual(["Close"]);
    expect(document.activeElement?.textContent).toBe("Close");
  });
});

describe("the actions of a trial", () => {
  const trial = {
    id: "trl_1",
    number: 4,
    state: "failed",
    params: { lr: 0.02 },
    actions: ["retry"],
  } as unknown as Trial;
  const names = () => screen.queryAllByRole("button").map((button) => button.textContent);

  it("are those that the service allows", () => {
    show(<TrialActions trial={trial} experiment={EXPERIMENT} />);
    expect(names()).toEqual(["Retry"]);
    show(<TrialActions trial={{ ...trial, state: "running", actions: ["stop"] }} experiment={EXPERIMENT} />);
    expect(names()).toEqual(["Retry", "Stop"]);
  });

  it("let an ended experiment run again, which is read at once", async () => {
    vi.spyOn(api, "actOnTrial").mockResolvedValue({} as never);
    const read = vi.spyOn(QueryClient.prototype, "invalidateQueries");
    show(<TrialActions trial={trial} experiment={EXPERIMENT} />);
    fireEvent.click(screen.getByRole("button", { name: "Retry" }));
    const buttons = await screen.findAllByRole("button", { name: /Retry/ });
    await act(() => Promise.resolve(fireEvent.click(buttons.at(-1)!)));
    expect(read.mock.calls.map(([filters]) => filters?.queryKey)).toContainEqual(["experiment", EXPERIMENT.id]);
  });

  it("can be requested again once the trial has failed again", async () => {
    const retry = vi.spyOn(api, "actOnTrial").mockRejectedValueOnce(new ApiError(0, "The service is not responding."));
    retry.mockResolvedValue({} as never);
    const confirm = async () => {
      const buttons = await screen.findAllByRole("button", { name: /Retry/ });
      await act(() => Promise.resolve(fireEvent.click(buttons.at(-1)!)));
    };
    const node = (state: Trial["state"], actions: Trial["actions"]) => (
      <MantineProvider env="test">
        <QueryClientProvider client={client}>
          <TrialActions trial={{ ...trial, state, actions }} experiment={EXPERIMENT} />
        </QueryClientProvider>
      </MantineProvider>
    );
    const client = new QueryClient();
    const { rerender } = render(node("failed", ["retry"]));
    fireEvent.click(screen.getByRole("button", { name: "Retry" }));
    await confirm();
    await screen.findByRole("alert");
    await confirm();
    expect((await screen.findByRole<HTMLButtonElement>("button", { name: "Retry requested" })).disabled).toBe(true);
    rerender(node("running", ["stop"]));
    rerender(node("failed", ["retry"]));
    fireEvent.click(screen.getByRole("button", { name: "Retry" }));
    await confirm();
    await waitFor(() => expect(retry).toHaveBeenCalledTimes(3));
    const [first, again, next] = retry.mock.calls.map(([, , key]) => key);
    expect(again).toBe(first); // so that it is carried out once if only the first answer was lost
    expect(next).not.toBe(first);
  });

  it("kill it after a question that says which work is lost", async () => {
    const kill = vi.spyOn(api, "actOnTrial").mockResolvedValue({} as never);
    show(<TrialActions trial={{ ...trial, state: "running", actions: ["stop", "kill"] }} experiment={EXPERIMENT} />);
    fireEvent.click(screen.getByRole("button", { name: "Kill" }));
    expect(await screen.findByText(/without a last report or checkpoint/)).toBeTruthy();
    expect(kill).not.toHaveBeenCalled();
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Kill this trial" }))));
    expect(kill).toHaveBeenCalledWith("trl_1", "kill", expect.anything());
  });

  it("fork it from a checkpoint with the parameters that were changed", async () => {
    const saved = { id: "ckpt_2", step: 9, bytes: 2000, state: "ready", pinned: false };
    vi.spyOn(api, "checkpoints").mockResolvedValue([saved] as never);
    const fork = vi.spyOn(api, "forkTrial").mockResolvedValue({} as never);
    const source = {
      ...trial,
      state: "completed",
      params: { lr: 0.02, seed: 1 },
      checkpoint: saved,
      actions: ["fork"],
    } as unknown as Trial;
    show(<TrialActions trial={source} experiment={EXPERIMENT} />);
    fireEvent.click(screen.getByRole("button", { name: "Fork" }));
    fireEvent.change(await screen.findByLabelText("lr"), { target: { value: "0.5" } });
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Start the new trial" }))));
    expect(fork).toHaveBeenCalledWith("trl_1", { checkpoint_id: null, params: { lr: 0.5 } }, expect.anything());
  });

  it("fork it with all digits of whole numbers above 2^53", async () => {
    const big = (value: object) => exactly(JSON.stringify(value).replace(/"(\d+)"/g, "$1"));
    const rounded = <T,>(value: T) => JSON.parse(exactText(value)) as T;
    const categories = ["1152921504606846977", "1152921504606846979"];
    const space = { seed: { type: "choice", categories } };
    const experiment = big({ ...EXPERIMENT, space }) as Experiment;
    const params = { seed: "1152921504606846979", other: "1152921504606846979" };
    const source = big({ ...trial, params, actions: ["fork"] }) as Trial;
    vi.spyOn(api, "checkpoints").mockResolvedValue([]);
    vi.spyOn(api, "exactExperiment").mockResolvedValue(experiment);
    vi.spyOn(api, "exactTrial").mockResolvedValue(source as never);
    const fork = vi.spyOn(api, "forkTrial").mockResolvedValue({} as never);
    show(<TrialActions trial={rounded(source)} experiment={rounded(experiment)} />);
    fireEvent.click(screen.getByRole("button", { name: "Fork" }));
    const field = await screen.findByRole<HTMLInputElement>("combobox", { name: "seed" });
    expect(field.value).toBe("1152921504606846979");
    fireEvent.click(field);
    fireEvent.click(await screen.findByRole("option", { name: "1152921504606846977", hidden: true }));
    await act(() => Promise.resolve(fireEvent.click(screen.getByRole("button", { name: "Start the new trial" }))));
    const body = { checkpoint_id: null, params: { seed: 1152921504606846977n } };
    expect(fork).toHaveBeenCalledWith("trl_1", body, expect.anything());
  });
});
