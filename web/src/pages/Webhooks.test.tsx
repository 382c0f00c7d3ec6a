import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import { type } from "../test/typing";
import { Webhooks } from "./Webhooks";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

it("sends the threshold that was typed, digit by digit", async () => {
  vi.spyOn(api, "webhooks").mockResolvedValue({ items: [] });
  const create = vi.spyOn(api, "createWebhook").mockResolvedValue({} as never);
  render(
    <MantineProvider env="test">
      <QueryClientProvider client={new QueryClient()}>
        <Webhooks all only={null} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  fireEvent.click(await screen.findByRole("button", { name: "reaches a value" }));
  fireEvent.change(screen.getByLabelText(/Address/), { target: { value: "https://example.com" } });
  const field = screen.getByLabelText<HTMLInputElement>("Threshold");
  type(field, "0.95");
  expect(field.value).toBe("0.95");
  fireEvent.submit(field.closest("form")!);
  await vi.waitFor(() => expect(create).toHaveBeenCalled());
  expect(create.mock.calls[0]![0]).toMatchObject({ threshold: 0.95 });
});
