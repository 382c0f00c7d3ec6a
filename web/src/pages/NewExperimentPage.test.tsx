import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { Link, MemoryRouter, Route, Routes, useNavigate } from "react-router";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { api, ApiError } from "../api/client";
import { type } from "../test/typing";
import { SignedIn } from "../parts/common/SignIn";
import NewExperimentPage from "./NewExperimentPage";

beforeEach(() => {
  vi.spyOn(api, "session").mockReturnValue(new Promise(() => undefined));
});

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

const SPEC = {
  name: "digits",
  entrypoint: "tuner.examples.digits:train",
  metric: "loss",
  mode: "min",
  space: { lr: { type: "uniform", lower: 0, upper: 1 } },
  seed: 3,
  warm_start: null,
};

/** The answer to a dry run. */
const DRY = {
  method: "random",
  num_samples: 4,
  max_t: null,
  time_attr: "training_iteration",
  reached: null,
  scaling: { num_workers: 2, max_workers: null, use_gpu: false, resources_per_worker: {} },
  limits: {},
  scheduler: {},
  gpu_hours_at_most: null,
  notes: [],
  configurations: [],
  labels: {},
};

/** Return false if the browser asks before the page is left. */
const leaves = () => window.dispatchEvent(new Event("beforeunload", { cancelable: true }));

/** Open the page at an address. */
function show(address: string) {
  render(
    <MantineProvider env="test">
      <MemoryRouter initialEntries={[address]}>
        <QueryClientProvider client={new QueryClient()}>
          <NewExperimentPage />
        </QueryClientProvider>
      </MemoryRouter>
    </MantineProvider>,
  );
}

/** Open the page for a clone of an experiment with this spec. */
function clone(more: object = {}, left_out: { pointer: string; reason: string }[] = []) {
  vi.spyOn(api, "experiment").mockResolvedValue({ id: "exp_1", name: "digits", seed: 3 } as never);
  vi.spyOn(api, "spec").mockResolvedValue({ spec: { ...SPEC, ...more }, left_out });
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  show("/new?clone=exp_1");
}

it("says that a clone with the same seed begins with the same configurations, and offers another seed", async () => {
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  clone();
  fireEvent.click(await screen.findByRole("button", { name: "Use another seed" }));
  expect(screen.queryByText(/The seed is that of digits/)).toBeNull();
  expect(screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML").value).toMatch(/^seed: (?!3$)\d+$/m);
  expect(screen.queryByText(/can be copied/)).toBeNull();
});

it("sends everything of the cloned spec, also what the form has no field for", async () => {
  vi.spyOn(api, "dryRun").mockResolvedValue(DRY as never);
  const create = vi.spyOn(api, "create").mockReturnValue(new Promise(() => undefined));
  const more = {
    points_to_evaluate: [{ lr: 0.1 }],
    scheduler: { type: "pb2", perturbation_interval: 2 },
    scaling: { num_workers: 2, working_dir: "caller" },
    limits: { hang_timeout_s: null },
    checkpoint: { storage: "s3://bucket", interval_s: null },
    executor: "ray",
    runtime_env: { env_vars: { DATA: "/data" }, pip: ["lion-pytorch"] },
    priority: 5,
    notes: "as in\n*the report*\n",
    tags: { team: "vision" },
  };
  clone(more);
  expect(await screen.findByLabelText("Scheduler", { selector: "input" })).toHaveProperty("value", "pb2");
  fireEvent.change(screen.getByLabelText("Name", { selector: "input" }), { target: { value: "again" } });
  const start = screen.getByRole<HTMLButtonElement>("button", { name: "Start the search" });
  await waitFor(() => expect(start.disabled).toBe(false));
  fireEvent.click(start);
  await waitFor(() => expect(create).toHaveBeenCalled());
  expect(create.mock.calls[0]![0]).toEqual({ ...SPEC, ...more, name: "again" });
});

it("says what of a spec could not be copied, and why", async () => {
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  clone({}, [{ pointer: "/entrypoint", reason: "the training function was sent as a pickle" }]);
  const alert = await screen.findByRole("alert");
  expect(alert.textContent).toContain("Not everything of “digits” can be copied");
  expect(alert.textContent).toContain("entrypoint: the training function was sent as a pickle.");
});

it("asks for repeats, as a word or as a number", async () => {
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  render(
    <MantineProvider env="test">
      <MemoryRouter initialEntries={["/new"]}>
        <QueryClientProvider client={new QueryClient()}>
          <NewExperimentPage />
        </QueryClientProvider>
      </MemoryRouter>
    </MantineProvider>,
  );
  const yaml = screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML");
  const field = await screen.findByLabelText<HTMLInputElement>("Repeats", { selector: "input" });
  fireEvent.change(field, { target: { value: "auto" } });
  expect(yaml.value).toContain("limits:\n  repeats: auto\n");
  fireEvent.change(field, { target: { value: "3" } });
  expect([field.value, yaml.value.includes("repeats: 3\n")]).toEqual(["3", true]);
  fireEvent.change(field, { target: { value: "" } });
  expect(yaml.value).not.toContain("repeats");
});

it("takes decimals as they are typed", async () => {
  const dry = vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  clone();
  const longest = await screen.findByLabelText<HTMLInputElement>("Longest trial");
  const yaml = screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML");
  type(longest, "2.");
  expect([longest.value, yaml.value.includes("max_t: 2\n")]).toEqual(["2.", true]);
  type(longest, "2.5");
  expect([longest.value, yaml.value.includes("max_t: 2.5\n")]).toEqual(["2.5", true]);
  const seconds = screen.getByLabelText<HTMLInputElement>("Seconds per iteration");
  type(seconds, "0.05");
  expect(seconds.value).toBe("0.05");
  await waitFor(() => expect(dry.mock.calls.at(-1)![2]).toBe(0.05));
});

it("leaves a list of metrics to the YAML, and edits a single one", async () => {
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  clone({ metric: ["loss", "latency"], mode: ["min", "max"] });
  const field = await screen.findByLabelText<HTMLInputElement>("Metric");
  const mode = screen.getByLabelText<HTMLInputElement>("Mode", { selector: "input" });
  const yaml = screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML");
  expect([field.value, field.disabled, mode.placeholder, mode.disabled]).toEqual([
    "loss, latency",
    true,
    "min, max",
    true,
  ]);
  expect(screen.getByText("several objectives: edit them in the YAML")).toBeTruthy();
  fireEvent.change(yaml, { target: { value: "metric: loss\nmode: min\n" } });
  expect([field.disabled, mode.disabled, mode.value]).toEqual([false, false, "min: lower is better"]);
  fireEvent.change(field, { target: { value: "latency" } });
  expect(yaml.value).toBe("metric: latency\nmode: min\n");
});

it.each([
  [new ApiError(403, "this needs the role editor"), "It cannot be checkedthis needs the role editor"],
  [new ApiError(0, "The service is not responding."), "It cannot be checkedThe service is not responding."],
  [new ApiError(422, "the space is empty"), "The spec is not validthe space is empty"],
])("calls the spec invalid only if it is", async (error, text) => {
  vi.spyOn(api, "dryRun").mockRejectedValue(error);
  clone();
  expect((await screen.findByRole("alert")).textContent).toBe(text);
});

it("sends an edited spec with another idempotency key, and the same spec again with the same one", async () => {
  vi.spyOn(api, "dryRun").mockResolvedValue(DRY as never);
  const create = vi.spyOn(api, "create").mockRejectedValue(new ApiError(0, "The service is not responding."));
  clone();
  const name = await screen.findByLabelText("Name", { selector: "input" });
  const start = screen.getByRole<HTMLButtonElement>("button", { name: "Start the search" });
  for (const [i, text] of ["one", "one", "two"].entries()) {
    fireEvent.change(name, { target: { value: text } });
    await waitFor(() => expect(start.disabled).toBe(false));
    fireEvent.click(start);
    await waitFor(() => expect(create).toHaveBeenCalledTimes(i + 1));
    await screen.findByText("The service is not responding.");
  }
  const [first, again, edited] = create.mock.calls.map(([, key]) => key);
  expect([again === first, edited === first]).toEqual([true, false]);
});

it("sends the seed of a clone with all its digits", async () => {
  const seed = "9223372036854775807";
  const copy = JSON.stringify({ spec: SPEC, left_out: [] }).replace('"seed":3', `"seed":${seed}`);
  const sent: string[] = [];
  vi.stubGlobal("fetch", async (request: Request) => {
    if (request.method === "POST") sent.push(await request.text());
    return new Response(request.url.endsWith("/spec") ? copy : JSON.stringify(DRY));
  });
  vi.spyOn(api, "experiment").mockResolvedValue({ id: "exp_1", name: "digits", seed: BigInt(seed) } as never);
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  show("/new?clone=exp_1");
  const yaml = await screen.findByLabelText<HTMLTextAreaElement>("Spec as YAML");
  fireEvent.change(screen.getByLabelText("Name", { selector: "input" }), { target: { value: "again" } });
  expect(yaml.value).toContain(`seed: ${seed}\n`);
  expect(screen.getByRole("button", { name: "Use another seed" })).toBeTruthy();
  await waitFor(() => expect(sent.at(-1)).toContain('"name":"again"'));
  expect(sent.at(-1)).toContain(`"seed":${seed}`);
  vi.unstubAllGlobals();
});

it("says that the preview waits for the YAML if there has been none yet", async () => {
  vi.spyOn(api, "dryRun").mockRejectedValue(new ApiError(422, "wrong"));
  clone();
  expect(await screen.findByText("The spec is not valid")).toBeTruthy();
  fireEvent.change(screen.getByLabelText("Spec as YAML"), { target: { value: "name: [" } });
  expect(await screen.findByText("The preview comes once the YAML can be parsed.")).toBeTruthy();
  expect(screen.queryByText(/Loading/)).toBeNull();
});

it("says that a space without parameters gives all trials the same configuration", async () => {
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "dryRun").mockResolvedValue({ ...DRY, configurations: [{ params: {} }, { params: {} }] } as never);
  show("/new");
  expect(await screen.findByText(/The space has no parameters/)).toBeTruthy();
  expect(screen.queryByRole("listitem")).toBeNull();
});

it("shows a viewer no form, and says which role is needed", async () => {
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: "ada", role: "viewer", project: null } as never);
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  show("/new");
  expect(await screen.findByText(/needs the role editor\. You are signed in as ada with the role viewer/)).toBeTruthy();
  expect(screen.queryByLabelText("Spec as YAML")).toBeNull();
  expect(screen.queryByRole("button", { name: "Start the search" })).toBeNull();
});

it("says that the preview is that of an earlier spec while the YAML cannot be parsed", async () => {
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "dryRun").mockResolvedValue({ ...DRY, configurations: [{ params: { lr: 0.5 } }] } as never);
  show("/new");
  await screen.findByText("lr=0.5");
  expect(screen.getByRole("heading", { name: "The first configurations" })).toBeTruthy();
  const yaml = screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML");
  const text = yaml.value;
  fireEvent.change(yaml, { target: { value: "name: [" } });
  expect(await screen.findByText(/This is still the preview of the spec as it was before/)).toBeTruthy();
  expect(screen.getByRole("heading", { name: "The first configurations of the spec as it was before" })).toBeTruthy();
  fireEvent.change(yaml, { target: { value: text } });
  expect(screen.queryByText(/still the preview|as it was before/)).toBeNull();
});

it("says why a parameter cannot be renamed, and keeps what was typed", async () => {
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  show("/new");
  const name = await screen.findByLabelText<HTMLInputElement>("Name of lr");
  const typed = (value: string) => {
    fireEvent.change(name, { target: { value } });
    fireEvent.keyDown(name, { key: "Enter" });
  };
  typed("width");
  expect([name.value, screen.queryByText("another parameter has this name")]).toEqual(["width", expect.anything()]);
  typed(" ");
  expect(screen.getByText("give it a name")).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Remove lr from the space" }));
  expect([name.value, screen.queryByText("give it a name")]).toEqual(["width", null]);
  typed("rate");
  expect(screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML").value).toMatch(/^ {2}rate:\n {4}type: choice\n/m);
});

it("says at each field what is wrong with it", async () => {
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  const errors = [
    { pointer: "/metric", message: "is required" },
    { pointer: "/space/lr/lower", message: "too low" },
  ];
  vi.spyOn(api, "dryRun").mockRejectedValue(new ApiError(422, "wrong", { errors } as never));
  show("/new");
  const metric = await screen.findByLabelText("Metric");
  await waitFor(() => expect(metric.getAttribute("aria-invalid")).toBe("true"));
  const described = (field: HTMLElement) =>
    (field.getAttribute("aria-describedby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent);
  expect(described(metric)).toContain("is required");
  const lower = screen.getByLabelText("from of lr");
  expect(described(lower)).toContain("too low");
  expect(screen.getByLabelText("to of lr").getAttribute("aria-invalid")).not.toBe("true");
  fireEvent.change(lower, { target: { value: "1" } });
  expect(described(lower)).not.toContain("too low");
});

it("asks for a token if the session has ended when the search is started, and keeps the spec", async () => {
  vi.spyOn(api, "dryRun").mockResolvedValue(DRY as never);
  vi.spyOn(api, "cluster").mockResolvedValue({ nodes: [], may_join: [] } as never);
  render(
    <MantineProvider env="test">
      <MemoryRouter initialEntries={["/new"]}>
        <QueryClientProvider client={new QueryClient()}>
          <SignedIn>
            <NewExperimentPage />
          </SignedIn>
        </QueryClientProvider>
      </MemoryRouter>
    </MantineProvider>,
  );
  const start = await screen.findByRole<HTMLButtonElement>("button", { name: "Start the search" });
  fireEvent.change(screen.getByLabelText("Metric"), { target: { value: "typed" } });
  await waitFor(() => expect(start.disabled).toBe(true));
  await waitFor(() => expect(start.disabled).toBe(false));
  for (const call of ["dryRun", "cluster", "create"] as const)
    vi.spyOn(api, call).mockRejectedValue(new ApiError(401, "a token is needed"));
  fireEvent.click(start);
  expect(await screen.findByLabelText(/^Token/)).toBeTruthy();
  const yaml = screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML");
  expect(yaml.value).toMatch(/^name: digits$/m);
  // The form hides what was typed, but the browser still asks before the page is left with it.
  expect(leaves()).toBe(false);
});

it("keeps what was typed for the way back until somebody signs out, and asks before the page is left with it", () => {
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  const client = new QueryClient();
  function Others() {
    const navigate = useNavigate();
    return (
      <>
        <button onClick={() => void navigate(-1)}>Back</button>
        <Link to="/new">New</Link>
      </>
    );
  }
  render(
    <MantineProvider env="test">
      <MemoryRouter initialEntries={["/new"]}>
        <QueryClientProvider client={client}>
          <SignedIn>
            <Routes>
              <Route path="/new" element={<NewExperimentPage />} />
              <Route path="*" element={<Others />} />
            </Routes>
          </SignedIn>
        </QueryClientProvider>
      </MemoryRouter>
    </MantineProvider>,
  );
  const yaml = () => screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML");
  const press = (role: string, name: string) => fireEvent.click(screen.getByRole(role, { name }));
  const example = yaml().value;
  expect(leaves()).toBe(true);
  fireEvent.change(yaml(), { target: { value: "name: typed" } });
  expect(leaves()).toBe(false);
  press("link", "Experiments");
  expect(leaves()).toBe(true);
  press("button", "Back");
  expect([yaml().value, leaves()]).toEqual(["name: typed", false]);
  press("link", "Experiments");
  press("link", "New");
  expect(yaml().value).toBe(example);
  press("link", "Experiments");
  void client.resetQueries(); // the session is never read
  press("button", "Back");
  press("link", "Experiments");
  expect(
    client
      .getQueryCache()
      .getAll()
      .filter(({ state }) => state.data === "name: typed"),
  ).toEqual([]);
});
