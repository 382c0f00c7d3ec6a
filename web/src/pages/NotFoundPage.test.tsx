import { MantineProvider } from "@mantine/core";
import { fireEvent, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { MemoryRouter, Outlet, Route, Routes } from "react-router";
import { NotFoundPage, Unbroken } from "./NotFoundPage";

function Broken(): never {
  throw new Error("no such colour");
}

it("a page that breaks says what broke, and other pages still open", () => {
  const logged = vi.spyOn(console, "error").mockImplementation(() => {});
  render(
    <MantineProvider>
      <MemoryRouter initialEntries={["/broken"]}>
        <Routes>
          <Route
            element={
              <Unbroken>
                <Outlet />
              </Unbroken>
            }
          >
            <Route path="/broken" element={<Broken />} />
            <Route path="/experiments" element={<p>the list</p>} />
            <Route path="*" element={<NotFoundPage />} />
          </Route>
        </Routes>
      </MemoryRouter>
    </MantineProvider>,
  );
  expect(screen.getByRole("heading").textContent).toBe("This page broke");
  expect(screen.getByText("no such colour")).toBeTruthy();
  expect(logged).toHaveBeenCalled();
  fireEvent.click(screen.getByRole("link", { name: "All experiments" }));
  expect(screen.getByText("the list")).toBeTruthy();
  logged.mockRestore();
});
