import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import DecisionsTab from "./DecisionsTab";

afterEach(() => void vi.restoreAllMocks());

it("shows in its field the text for which the address asks, also if a link has changed it", async () => {
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
