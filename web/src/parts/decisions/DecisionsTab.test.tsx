import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import type { Address } from "../../pages/useAddress";
import DecisionsTab from "./DecisionsTab";

beforeEach(() => void vi.spyOn(api, "session").mockReturnValue(new Promise(() => {})));
afterEach(() => void vi.restoreAllMocks());

it("shows in its field the text for which the address asks, even if a link has changed it", async () => {
  vi.spyOn(api, "decisions").mockResolvedValue({ items: [], next_page_token: null });
  const client = new QueryClient();
  const experiment = { id: "exp_1", name: "a", state: "running", trials: 3, objectives: [] } as unknown as Experiment;
  const tab = (q: string | null) => (
    <MantineProvider env="test">
      <QueryClientProvider client={client}>
        <MemoryRouter>
          <DecisionsTab
            experiment={experiment}
            address={{ get: (name) => (name === "q" ? q : null), set: () => {} }}
            onSelect={() => {}}
          />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>
  );
  const { rerender } = render(tab(null));
  const field = await screen.findByLabelText<HTMLInputElement>("Search the reasons");
  expect(field.value).toBe("");
  rerender(tab("starts from the beginning"));
  expect(field.value).toBe("starts from the beginning");
});

it.each([
  ["viewer", 0],
  ["editor", 1],
])("asks what would have happened otherwise only for those who may: %s", async (role, count) => {
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: "ada", role } as never);
  vi.spyOn(api, "decisions").mockResolvedValue({ items: [], next_page_token: null });
  const experiment = { id: "exp_1", name: "a", state: "running", trials: 3, objectives: [] } as unknown as Experiment;
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>
          <DecisionsTab experiment={experiment} address={{ get: () => null, set: () => {} }} onSelect={() => {}} />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  await screen.findByLabelText("Search the reasons");
  await waitFor(() => expect(screen.queryAllByText("What if?")).toHaveLength(count));
});

it("filters by all kinds that are chosen before the first one is drawn", async () => {
  vi.spyOn(api, "decisions").mockResolvedValue({ items: [], next_page_token: null });
  const experiment = { id: "exp_1", name: "a", state: "running", trials: 3, objectives: [] } as unknown as Experiment;
  let kind: string | null = null;
  const set: Address["set"] = (changes) => {
    kind = (typeof changes === "function" ? changes(() => kind) : changes)["kind"] ?? null;
  };
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>
          <DecisionsTab experiment={experiment} address={{ get: () => null, set }} onSelect={() => {}} />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  fireEvent.click(await screen.findByRole("button", { name: "stop" }));
  fireEvent.click(screen.getByRole("button", { name: "exploit" }));
  expect(kind).toBe("stop,exploit");
});
