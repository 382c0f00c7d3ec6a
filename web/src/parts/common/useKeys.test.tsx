import { fireEvent, render, screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";
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
});
