import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import "../parts/common/keptFocus";
import { type } from "../test/typing";
import { Webhooks } from "./Webhooks";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

function show() {
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <Webhooks all only={null} />
      </QueryClientProvider>
    </MantineProvider>,
  );
}

it("moves the focus of the keyboard from Delete to the button that deletes, and back", async () => {
  const one = { id: "whk_1", url: "https://example.com", events: [], threshold: null, project: null, format: "json" };
  vi.spyOn(api, "webhooks").mockResolvedValue({ items: [one] } as never);
  show();
  const press = (button: HTMLElement) => {
    button.focus();
    fireEvent.click(button);
  };
  press(await screen.findByRole("button", { name: "Delete https://example.com" }));
  await waitFor(() => expect(document.activeElement!.textContent).toBe("Delete permanently"));
  press(screen.getByRole("button", { name: "Keep it" }));
  await waitFor(() => expect(document.activeElement!.textContent).toBe("Delete"));
});

it("says that a webhook has more messages than are shown", async () => {
  const one = { id: "whk_1", url: "https://example.com", events: [], threshold: null, project: null, format: "json" };
  const message = { id: "dlv_1", created_at: "2026-11-30T12:00:00Z", event: "test", state: "failed", attempts: 1 };
  vi.spyOn(api, "webhooks").mockResolvedValue({ items: [one] } as never);
  vi.spyOn(api, "deliveries").mockResolvedValue({ items: [message], next_page_token: "7" } as never);
  show();
  fireEvent.click(await screen.findByRole("button", { name: "Messages of https://example.com" }));
  await screen.findByText(/These are the newest 1\. .*\/webhooks\/whk_1\/deliveries/);
});

it("sends the threshold that was typed, digit by digit", async () => {
  vi.spyOn(api, "webhooks").mockResolvedValue({ items: [] });
  const create = vi.spyOn(api, "createWebhook").mockResolvedValue({} as never);
  show();
  fireEvent.click(await screen.findByRole("button", { name: "reaches a value" }));
  fireEvent.change(screen.getByLabelText(/Address/), { target: { value: "https://example.com" } });
  const field = screen.getByLabelText<HTMLInputElement>("Threshold");
  type(field, "0.95");
  expect(field.value).toBe("0.95");
  fireEvent.submit(field.closest("form")!);
  await waitFor(() => expect(create).toHaveBeenCalled());
  expect(create.mock.calls[0]![0]).toMatchObject({ threshold: 0.95 });
});
