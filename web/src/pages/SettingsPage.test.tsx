import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, it, vi } from "vitest";
import { api, ApiError } from "../api/client";
import { type } from "../test/typing";
import SettingsPage, { Create } from "./SettingsPage";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

it("creates no token that expires after 0 days, and says how to create one that never does", async () => {
  const create = vi.spyOn(api, "createToken").mockResolvedValue({} as never);
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <Create only={null} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  fireEvent.change(screen.getByLabelText(/Name/), { target: { value: "nightly" } });
  const days = screen.getByLabelText<HTMLInputElement>("Expires after, in days");
  type(days, "0");
  fireEvent.blur(days);
  expect(days.value).toBe("0");
  expect(screen.getByText("Leave this empty for a token that never expires.")).toBeTruthy();
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Create" }).disabled).toBe(true);

  type(days, "0.5");
  fireEvent.blur(days);
  // The second press comes before the page shows that the first one is on its way.
  act(() =>
    [0, 1].forEach(() => days.closest("form")!.dispatchEvent(new Event("submit", { bubbles: true, cancelable: true }))),
  );
  await waitFor(() => expect(create).toHaveBeenCalled());
  await waitFor(() => expect(screen.getByLabelText<HTMLInputElement>(/Name/).value).toBe(""));
  expect(create).toHaveBeenCalledOnce();
  expect(create.mock.calls[0]![0]).toMatchObject({ expires_days: 0.5 });
});

it("shows what others create and delete meanwhile, and drops a webhook that is gone", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  const token = { id: "tok_1", name: "nightly", role: "editor", project: null, created_at: "2026-03-03T12:00:00Z" };
  const hook = { id: "whk_1", url: "https://example.com", events: [], threshold: null, project: null, format: "json" };
  const lists = {
    tokens: vi.spyOn(api, "tokens").mockResolvedValue({ items: [] }),
    projects: vi.spyOn(api, "projects").mockResolvedValue({ items: [] }),
    webhooks: vi.spyOn(api, "webhooks").mockResolvedValue({ items: [] }),
    audit: vi.spyOn(api, "audit").mockResolvedValue({ items: [], next_page_token: null }),
  };
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: "ada", role: "admin" } as never);
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>
          <SettingsPage />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  await screen.findByText(/No webhooks yet/);
  await screen.findByText("No changes yet.");
  lists.tokens.mockResolvedValue({ items: [token] } as never);
  lists.webhooks.mockResolvedValue({ items: [hook] } as never);
  await act(() => vi.advanceTimersByTimeAsync(10_000));
  expect(await screen.findByText("nightly")).toBeTruthy();
  await screen.findByRole("button", { name: "Delete https://example.com" });
  expect(screen.getAllByRole("table").map((one) => one.getAttribute("aria-label"))).toEqual(["Tokens", "Webhooks"]);
  fireEvent.click(await screen.findByRole("button", { name: "Delete https://example.com" }));
  for (const list of [lists.projects, lists.audit]) expect(list.mock.calls.length).toBeGreaterThan(1);

  vi.spyOn(api, "deleteWebhook").mockRejectedValue(new ApiError(404, "no webhook 'whk_1'"));
  lists.webhooks.mockResolvedValue({ items: [] });
  fireEvent.click(screen.getByRole("button", { name: "Delete permanently https://example.com" }));
  await screen.findByText(/No webhooks yet/);
});

it("shows the latest changes even if hundreds of checks of a spec came after them", async () => {
  const entry = { actor: "ada", time: "2026-03-03T12:00:00Z", status: 200, address: "::1", created: null };
  const check = { ...entry, method: "POST", path: "/api/v1/experiments/dry-run" };
  const checks = Array.from({ length: 200 }, (_, id) => ({ ...check, id: String(900 - id) }));
  const pause = { ...entry, id: "7", method: "POST", path: "/api/v1/experiments/exp_0123456789abcdef0123/pause" };
  for (const name of ["tokens", "projects", "webhooks"] as const) vi.spyOn(api, name).mockResolvedValue({ items: [] });
  vi.spyOn(api, "session").mockResolvedValue({ required: true, name: "ada", role: "admin" } as never);
  vi.spyOn(api, "audit").mockImplementation((_, token) => {
    const page =
      token === "701" ? { items: [pause], next_page_token: null } : { items: checks, next_page_token: "701" };
    return Promise.resolve(page as never);
  });
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <MemoryRouter>
          <SettingsPage />
        </MemoryRouter>
      </QueryClientProvider>
    </MantineProvider>,
  );
  const changes = await screen.findByRole("region", { name: "Latest changes" });
  expect(changes.textContent).toContain("paused exp_0123456789abcdef0123");
});
