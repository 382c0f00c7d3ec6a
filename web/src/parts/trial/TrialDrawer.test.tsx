import { Drawer, MantineProvider } from "@mantine/core";
import { act, render, screen } from "@testing-library/react";
import { useRef } from "react";
import { expect, it, vi } from "vitest";
import { useFocus, useKeptFocus } from "./TrialDrawer";

function Sheet({ phone }: { phone: boolean }) {
  const content = useRef<HTMLDivElement>(null);
  useKeptFocus(content, phone);
  return (
    <MantineProvider>
      <Drawer.Root opened onClose={() => {}} trapFocus={phone} transitionProps={{ duration: 0 }}>
        <Drawer.Content ref={content}>
          <Drawer.CloseButton aria-label="Close" data-autofocus />
          <input aria-label="Search" />
        </Drawer.Content>
      </Drawer.Root>
    </MantineProvider>
  );
}

const settle = () => act(() => new Promise((done) => setTimeout(done, 50)));

it("keeps the focus in a field when the window becomes as narrow as a phone's", async () => {
  const { rerender } = render(<Sheet phone={false} />);
  const field = await screen.findByLabelText("Search");
  act(() => field.focus());
  rerender(<Sheet phone />);
  await settle();
  expect(document.activeElement).toBe(field);
});

function Rows({ open, scrolled }: { open: boolean; scrolled: boolean }) {
  const [content, close] = useFocus(open ? 3 : undefined, false);
  return (
    <>
      <main>
        <div role="region" tabIndex={0}>
          {!scrolled && <a href="#3">3</a>}
        </div>
      </main>
      {open && (
        <div ref={content}>
          <button ref={close}>Close</button>
        </div>
      )}
    </>
  );
}

it("returns the focus to the table if the link that opened the trial is gone", () => {
  const { rerender } = render(<Rows open={false} scrolled={false} />);
  screen.getByRole("link").focus();
  rerender(<Rows open scrolled={false} />);
  expect(document.activeElement).toBe(screen.getByRole("button"));
  rerender(<Rows open scrolled />);
  rerender(<Rows open={false} scrolled />);
  expect(document.activeElement).toBe(screen.getByRole("region"));
});

it("brings the link that opened the trial back into sight for the keyboard, and leaves the page in its place for the mouse", () => {
  const scrolled = [true, false].map((keyboard) => {
    const { rerender, unmount } = render(<Rows open={false} scrolled={false} />);
    const link = screen.getByRole("link");
    const scroll = vi.fn<(options: object) => void>();
    Object.assign(link, { scrollIntoView: scroll });
    link.focus();
    rerender(<Rows open scrolled={false} />);
    Object.assign(link, { matches: (selector: string) => selector === ":focus-visible" && keyboard });
    rerender(<Rows open={false} scrolled={false} />);
    expect(document.activeElement).toBe(link);
    unmount();
    return scroll.mock.calls;
  });
  expect(scrolled).toEqual([[[{ block: "nearest" }]], []]);
});

it("moves the focus to the page if the address has opened the trial", () => {
  const { rerender } = render(<Rows open scrolled={false} />);
  rerender(<Rows open={false} scrolled={false} />);
  expect(document.activeElement, "nothing had the focus").toBe(document.body);
  rerender(<Rows open scrolled={false} />);
  screen.getByRole("button").focus();
  rerender(<Rows open={false} scrolled={false} />);
  expect(document.activeElement).toBe(screen.getByRole("region"));
});
