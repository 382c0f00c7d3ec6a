import { act, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
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

it.each([
  ["goes to the button beside the one that is gone", false],
  ["stays in a drawer or another dialog in which the user types by then", true],
])("the focus %s", async (_, typing) => {
  const { rerender } = render(<Page />);
  const pause = screen.getByText("Pause");
  pause.focus();
  rerender(<Page asked />);
  pause.blur();
  rerender(<Page />);
  await vi.waitFor(() => expect(document.activeElement).toBe(pause));
  if (typing) screen.getByLabelText("Search").focus();
  rerender(<Page paused />);
  await act(() => Promise.resolve()); // the page notices that the button is gone
  expect(document.activeElement).toBe(typing ? screen.getByLabelText("Search") : screen.getByText("Resume"));
});
