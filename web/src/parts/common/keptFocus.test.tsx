import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { createPortal } from "react-dom";
import { expect, it } from "vitest";
import { nextFrame } from "../../test/frames";
import "./keptFocus";

interface PageProps {
  button?: "ready" | "loading" | "disabled" | "gone";
  page?: "settings" | "another";
}

function Page({ button = "ready", page = "settings" }: PageProps) {
  return (
    <main>
      <a href="#top">Top</a>
      {page === "settings" && (
        <form onSubmit={(event) => event.preventDefault()}>
          <input aria-label="Name" />
          {button !== "gone" && (
            <button type="button" disabled={button !== "ready"} data-loading={button === "loading" || undefined}>
              Create
            </button>
          )}
        </form>
      )}
    </main>
  );
}

/** Press the button with the keyboard, and then take the focus from it, as browsers do once it is disabled or gone. */
function pressed() {
  const { rerender } = render(<Page />);
  const button = screen.getByText("Create");
  button.focus();
  fireEvent.click(button, { detail: 0 });
  return async (props: PageProps) => {
    button.blur();
    rerender(<Page {...props} />);
    await nextFrame();
    return document.activeElement;
  };
}

it("the focus returns to a button that was disabled while its request was under way", async () => {
  const become = pressed();
  expect(await become({ button: "loading" })).toBe(document.body);
  expect(await become({ button: "ready" })).toBe(screen.getByText("Create"));
});

it.each(["disabled", "gone"] as const)("the focus goes to a control beside a button that is %s", async (button) => {
  const become = pressed();
  expect(await become({ button: "loading" })).toBe(document.body);
  expect(await become({ button })).toBe(screen.getByLabelText("Name"));
});

it("the focus stays in a field to which the user went meanwhile", async () => {
  const become = pressed();
  await become({ button: "loading" });
  screen.getByText("Top").focus();
  screen.getByText("Top").blur();
  expect(await become({ button: "ready" })).toBe(document.body);
});

it.each([
  ["the mouse", () => fireEvent.pointerDown(document.body)],
  ["Tab, out of the page", () => fireEvent.keyDown(document.body, { key: "Tab" })],
])("the focus stays away once the user has left the button with %s", async (_, leave) => {
  const become = pressed();
  leave();
  expect(await become({ button: "gone" })).toBe(document.body);
});

it("a button that opens another page gives the focus to nothing there", async () => {
  const become = pressed();
  expect(await become({ page: "another" })).toBe(document.body);
  await waitFor(() => expect(screen.queryByText("Create")).toBeNull());
});

it("Enter that is held down presses no button that has got the focus meanwhile", () => {
  render(<Page />);
  const [top, create] = [screen.getByText("Top"), screen.getByText("Create")];
  const held = (target: HTMLElement) => fireEvent.keyDown(target, { key: "Enter", repeat: true });
  fireEvent.keyDown(top, { key: "Enter" });
  expect([held(top), held(create)]).toEqual([true, false]);
  expect(fireEvent.keyDown(create, { key: "Enter" })).toBe(true);
});

it("the focus goes to the button that opened a popover once a button of the popover has closed it", async () => {
  const popover = (state: "opened" | "reading" | "done") => (
    <>
      <main>
        <button
          id="opener"
          aria-haspopup="dialog"
          disabled={state === "reading"}
          data-loading={state === "reading" || undefined}
        >
          save
        </button>
      </main>
      {state === "opened" &&
        createPortal(
          <div role="dialog" aria-labelledby="opener">
            <button type="button">as CSV</button>
          </div>,
          document.body,
        )}
    </>
  );
  const { rerender } = render(popover("opened"));
  screen.getByText("as CSV").focus();
  fireEvent.click(screen.getByText("as CSV"), { detail: 0 });
  screen.getByText("as CSV").blur();
  const focused = [];
  for (const state of ["reading", "done"] as const) {
    rerender(popover(state));
    await nextFrame();
    focused.push(document.activeElement);
  }
  expect(focused).toEqual([document.body, screen.getByText("save")]);
});
