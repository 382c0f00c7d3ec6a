import { MantineProvider, Modal } from "@mantine/core";
import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import { KeyHelp } from "./KeyHelp";
import { useKeys } from "./useKeys";

function Page({ pressed }: { pressed: string[] }) {
  useKeys({ j: () => pressed.push("j"), "/": () => pressed.push("/") });
  return <input aria-label="search" />;
}

describe("keys", () => {
  it("work everywhere except in text fields, and not with Ctrl, Alt or Meta", () => {
    const pressed: string[] = [];
    const { unmount } = render(<Page pressed={pressed} />);
    fireEvent.keyDown(document.body, { key: "j" });
    fireEvent.keyDown(document.body, { key: "x" });
    fireEvent.keyDown(screen.getByLabelText("search"), { key: "j" });
    for (const modifier of ["ctrlKey", "metaKey", "altKey"])
      fireEvent.keyDown(document.body, { key: "j", [modifier]: true });
    expect(pressed).toEqual(["j"]);
    expect(fireEvent.keyDown(document.body, { key: "/" })).toBe(false);
    expect(pressed).toEqual(["j", "/"]);
    unmount();
    fireEvent.keyDown(document.body, { key: "j" });
    expect(pressed).toHaveLength(2);
  });

  it("do nothing behind an open dialog", async () => {
    const pressed: string[] = [];
    const page = (opened: boolean) => (
      <MantineProvider env="test">
        <Page pressed={pressed} />
        <Modal opened={opened} onClose={() => {}} title="Edit">
          <button>Save</button>
        </Modal>
      </MantineProvider>
    );
    const { rerender } = render(page(true));
    const button = await screen.findByText("Save");
    fireEvent.keyDown(button, { key: "j" });
    fireEvent.keyDown(document.body, { key: "j" });
    expect(pressed).toEqual([]);
    rerender(page(false));
    await waitFor(() => expect(screen.queryByText("Save")).toBeNull());
    fireEvent.keyDown(document.body, { key: "j" });
    expect(pressed).toEqual(["j"]);
  });

  it("are listed by ?, which also closes the list", async () => {
    render(
      <MantineProvider env="test">
        <KeyHelp />
      </MantineProvider>,
    );
    fireEvent.keyDown(document.body, { key: "?" });
    const line = await screen.findByText("compare the picked trials");
    fireEvent.keyDown(line, { key: "?" });
    await waitFor(() => expect(screen.queryByText("compare the picked trials")).toBeNull());
  });
});
