import { act, render, screen } from "@testing-library/react";
import { useRef } from "react";
import { createMemoryRouter, Link, Outlet, RouterProvider } from "react-router";
import { expect, it } from "vitest";
import { useHeadingFocus } from "./useHeadingFocus";

function Frame() {
  const main = useRef<HTMLElement>(null);
  useHeadingFocus(main);
  return (
    <>
      <Link to="/new">form</Link>
      <main ref={main}>
        <Outlet />
      </main>
    </>
  );
}

/** Open a list with a link to an experiment; /new is a form with the focus in a field. */
function open() {
  const children = [
    { path: "/", element: <h1>List</h1> },
    { path: "/one", element: <h1>One</h1> },
    { path: "/late", element: <p>loading</p> },
    { path: "/new", element: [<h1 key="title">New</h1>, <input key="field" autoFocus aria-label="name" />] },
  ];
  const router = createMemoryRouter([{ element: <Frame />, children }]);
  render(<RouterProvider router={router} />);
  return router;
}

const focused = () => document.activeElement!.textContent || document.activeElement!.getAttribute("aria-label");

it("moves the focus to the heading of the next page, but not on the first load", async () => {
  const router = open();
  expect(document.activeElement).toBe(document.body);
  await act(() => router.navigate("/one"));
  expect(focused()).toBe("One");
  await act(() => router.navigate(-1));
  expect(focused()).toBe("List");
});

it("also moves it from a link that stays, and to a heading that comes later", async () => {
  const router = open();
  screen.getByRole("link").focus();
  await act(() => router.navigate("/late"));
  expect(focused()).toBe("form");
  const heading = document.createElement("h1");
  await act(() => Promise.resolve(screen.getByText("loading").before(heading)));
  expect(document.activeElement).toBe(heading);
  heading.remove();
});

it("leaves the focus alone if a page has moved it, after a change of the query, and at another address of the same page", async () => {
  const router = open();
  await act(() => router.navigate("/new"));
  expect(focused()).toBe("name");
  screen.getByRole("link").focus();
  await act(() => router.navigate("/new?q=1"));
  await act(() => router.navigate("/one", { replace: true }));
  expect(focused()).toBe("form");
});
