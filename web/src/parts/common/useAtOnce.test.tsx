import { MantineProvider, Switch } from "@mantine/core";
import { act, render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { expect, it } from "vitest";
import { useAddress } from "../../pages/useAddress";
import { LinearOrLog } from "../curves/controls";
import { useAtOnce } from "./useAtOnce";

function Page() {
  const address = useAddress();
  const log = address.get("y") === "log";
  const [all, setAll] = useAtOnce(address.get("all") !== null, (on) => address.set({ all: on ? "1" : null }));
  return (
    <>
      <LinearOrLog label="Vertical axis" log={log} onChange={(on) => address.set({ y: on ? "log" : null })} />
      <Switch label="all" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} />
      <p>
        {log ? "log" : "linear"} {address.get("all")}
      </p>
    </>
  );
}

function show(search: string) {
  render(
    <MantineProvider env="test">
      <MemoryRouter initialEntries={[`/${search}`]}>
        <Page />
      </MemoryRouter>
    </MantineProvider>,
  );
  const click = (label: string) => screen.getByLabelText<HTMLInputElement>(label).click();
  return { click, drawn: () => document.querySelector("p")!.textContent };
}

it("a control shows each choice before the address is drawn, so that no click is lost", () => {
  const { click, drawn } = show("?y=log");
  act(() => {
    click("linear");
    expect(screen.getByLabelText<HTMLInputElement>("linear").checked).toBe(true);
    expect(drawn()).toBe("log ");
    click("log");
    click("all");
    click("all");
    click("all");
  });
  expect(drawn()).toBe("log 1");
});
