import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { expect, it } from "vitest";
import { nextFrame } from "../../test/frames";
import { FocusBack } from "./FocusBack";

interface PageProps {
  /** The dialog that "Pause" opens is open. */
  asked?: boolean;
  /** The service has carried the action out. */
  paused?: boolean;
}

function Page({ asked, paused }: PageProps) {
  return (
    <>
      <div>
        {!paused && <button>Pause</button>}
        <button>Resume</button>
        {asked && <FocusBack />}
      </div>
      <section aria-modal="true">
        <input aria-label="Search" />
      </section>
    </>
  );
}

it.each<[string, "nothing" | "types" | "clicks"]>([
  ["goes to the button beside the one that is gone", "nothing"],
  ["stays in a drawer or another dialog in which the user types by then", "types"],
  ["stays away if the user has left it with the mouse by then", "clicks"],
])("the focus %s", async (_, user) => {
  const { rerender } = render(<Page />);
  const pause = screen.getByText("Pause");
  pause.focus();
  rerender(<Page asked />);
  pause.blur();
  rerender(<Page />);
  await waitFor(() => expect(document.activeElement).toBe(pause));
  if (user === "types") screen.getByLabelText("Search").focus();
  if (user === "clicks") {
    fireEvent.pointerDown(document.body);
    pause.blur();
  }
  rerender(<Page paused />);
  await nextFrame(); // the page notices that the button is gone
  const expected = {
    nothing: screen.getByText("Resume"),
    types: screen.getByLabelText("Search"),
    clicks: document.body,
  };
  expect(document.activeElement).toBe(expected[user]);
});

it("leaves the focus to the heading of another page that the dialog has opened", async () => {
  const page = (main: ReactNode, asked = false) => (
    <div>
      <a href="#main">Skip to content</a>
      <main>{main}</main>
      {asked && <FocusBack />}
    </div>
  );
  const more = <button key="more">More</button>;
  const { rerender } = render(page(more));
  screen.getByText("More").focus();
  rerender(page(more, true));
  screen.getByText("More").blur();
  rerender(page(null)); // the page that is opened is still being loaded
  await nextFrame();
  expect(document.activeElement).toBe(document.body);
});
