import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import NewExperimentPage from "./NewExperimentPage";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

it("says that a clone with the same seed begins with the same configurations, and offers another seed", async () => {
  const source = {
    id: "exp_1",
    name: "digits",
    entrypoint: "tuner.examples.digits:train",
    metric: "loss",
    mode: "min",
    objectives: [{ metric: "loss", mode: "min" }],
    space: { lr: { type: "uniform", lower: 0, upper: 1 } },
    seed: 3,
    scaling: {},
    limits: {},
  };
  vi.spyOn(api, "experiment").mockResolvedValue(source as never);
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  // jsdom has no fonts, on whose loading the size of the text field depends
  Object.defineProperty(document, "fonts", { value: new EventTarget(), configurable: true });
  render(
    <MantineProvider>
      <MemoryRouter initialEntries={["/new?clone=exp_1"]}>
        <QueryClientProvider client={new QueryClient()}>
          <NewExperimentPage />
        </QueryClientProvider>
      </MemoryRouter>
    </MantineProvider>,
  );
  fireEvent.click(await screen.findByRole("button", { name: "Use another seed" }));
  expect(screen.queryByText(/The seed is that of digits/)).toBeNull();
  expect(screen.getByLabelText<HTMLTextAreaElement>("Spec as YAML").value).toMatch(/^seed: (?!3$)\d+$/m);
});

it("asks for repeats, as a word or as a number", async () => {
  vi.spyOn(api, "dryRun").mockReturnValue(new Promise(() => undefined));
  vi.spyOn(api, "cluster").mockReturnValue(new Promise(() => undefined));
  Object.defineProperty(document, "fonts", { value: new EventTarget(), configurable: true });
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
