import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import { Projects } from "./Projects";

afterEach(() => void vi.restoreAllMocks());

it("keeps the focus in what new experiments learn from while a choice is sent, and sends the next one after it", async () => {
  const used = { experiments: 1, running: 0, archived: 0, gpu_hours: 0, gpu_hours_saved: 0, cpu_hours: 0, quota: {} };
  const project = { name: "vision", latest_at: null, ...used };
  vi.spyOn(api, "projects").mockResolvedValue({ items: [{ ...project, warm_start: null }] });
  let answer = () => {};
  const change = vi
    .spyOn(api, "changeProject")
    .mockImplementation(() => new Promise((done) => (answer = () => done({} as never))));
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>
          <Projects mayChange />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  const select = await screen.findByLabelText<HTMLSelectElement>("New experiments of vision learn");
  select.focus();
  fireEvent.change(select, { target: { value: "auto" } });
  await waitFor(() => expect(change).toHaveBeenCalledTimes(1));
  // A browser takes the focus from a control that is disabled.
  expect([select.disabled, select.value, document.activeElement]).toEqual([false, "auto", select]);
  fireEvent.change(select, { target: { value: "none" } });
  await waitFor(() => expect(select.value).toBe("none"));
  expect(change).toHaveBeenCalledTimes(1);
  answer();
  await waitFor(() => expect(change.mock.calls.map(([, body]) => body.warm_start)).toEqual(["auto", null]));
});
