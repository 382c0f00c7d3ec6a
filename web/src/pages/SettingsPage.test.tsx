import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { api } from "../api/client";
import { type } from "../test/typing";
import { Create } from "./SettingsPage";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
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
  fireEvent.submit(days.closest("form")!);
  await vi.waitFor(() => expect(create).toHaveBeenCalled());
  expect(create.mock.calls[0]![0]).toMatchObject({ expires_days: 0.5 });
});
