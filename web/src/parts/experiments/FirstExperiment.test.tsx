import { MantineProvider } from "@mantine/core";
import { fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Snippet } from "./FirstExperiment";

/** Browsers have this function, even on pages that were loaded over plain HTTP. jsdom does not. */
const exec = vi.fn<() => boolean>();

beforeEach(() => {
  vi.stubGlobal("isSecureContext", false);
  Object.assign(document, { execCommand: exec });
});
afterEach(() => {
  vi.unstubAllGlobals();
  Reflect.deleteProperty(document, "execCommand");
});

const snippet = (text: string) => (
  <MantineProvider env="test">
    <Snippet text={text} />
  </MantineProvider>
);

it("copies a token over plain HTTP, where browsers offer no clipboard", async () => {
  let copied = "";
  exec.mockImplementation(() => {
    copied = document.querySelector<HTMLTextAreaElement>("body > textarea")!.value;
    return true;
  });
  const { rerender } = render(snippet("tnr_1"));
  fireEvent.click(screen.getByRole("button", { name: "Copy" }));
  await screen.findByRole("button", { name: "Copied" });
  expect(copied).toBe("tnr_1");
  rerender(snippet("tnr_2"));
  expect(screen.getByRole("button").textContent).toBe("Copy");
});

it("says so if the browser does not copy", async () => {
  exec.mockReturnValue(false);
  render(snippet("tnr_1"));
  fireEvent.click(screen.getByRole("button", { name: "Copy" }));
  expect((await screen.findByRole("alert")).textContent).toContain("does not allow this page to copy");
  expect(screen.getByRole("button").textContent).toBe("Copy");
});
