import { MantineProvider } from "@mantine/core";
import { act, fireEvent, render, screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { theme } from "../../theme";
import { Select } from "./Select";

const options = (hidden: boolean) => screen.queryAllByRole("option", { hidden }).map((one) => one.textContent);

it("makes its options when it gets the focus, and says that they are shown", () => {
  render(
    <MantineProvider env="test" theme={theme}>
      <Select aria-label="State" data={["running", "ended"]} />
    </MantineProvider>,
  );
  expect(options(true)).toEqual([]);
  expect(document.querySelector("svg")!.closest("[aria-hidden=true]"), "the arrow has no name").not.toBeNull();
  const control = screen.getByRole("combobox", { name: "State" });
  act(() => control.focus());
  expect([options(true), options(false)]).toEqual([["running", "ended"], []]);
  fireEvent.keyDown(control, { code: "ArrowDown" });
  expect(options(false)).toEqual(["running", "ended"]);
  const shown = screen.getByRole("listbox").id;
  expect(["aria-expanded", "aria-controls"].map((name) => control.getAttribute(name))).toEqual(["true", shown]);
  expect(control.getAttribute("aria-activedescendant")).toBe(screen.getAllByRole("option")[0]!.id);
});
