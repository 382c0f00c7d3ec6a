import { MantineProvider } from "@mantine/core";
import { fireEvent, render, screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import { curvesCall } from "../../charts/copies";
import { STEP } from "../../curves/across";
import { CopyMenu } from "./CopyMenu";
import { SaveMenu } from "./SaveMenu";

const CALL = curvesCall("exp_1", "loss", STEP);

describe("what a chart offers", () => {
  it("includes its numbers as a table, one page at a time", async () => {
    const points = Array.from({ length: 450 }, (_, i) => [i, i === 0 ? null : 0.123456789 * i]);
    render(
      <MantineProvider>
        <SaveMenu name="digits loss" rows={() => [["step", "loss"], ...points]} call={CALL} />
      </MantineProvider>,
    );
    fireEvent.click(screen.getByRole("button", { name: "save" }));
    fireEvent.click(await screen.findByRole("button", { name: "show as table" }));
    const dialog = within(await screen.findByRole("dialog"));
    const table = within(await dialog.findByRole("table"));
    expect(table.getAllByRole("columnheader").map((one) => one.textContent)).toEqual(["step", "loss"]);
    expect(table.getAllByRole("row")).toHaveLength(201);
    expect(table.getAllByRole("row")[1]!.textContent).toBe("0–");
    expect(dialog.getByRole("status").textContent).toBe("Rows 1 to 200 of 450");
    fireEvent.click(dialog.getByRole("button", { name: "Later" }));
    fireEvent.click(dialog.getByRole("button", { name: "Later" }));
    expect(dialog.getByRole("status").textContent).toBe("Rows 401 to 450 of 450");
    expect(table.getAllByRole("row")[1]!.textContent).toBe("40049.3827");
    expect(dialog.getByRole("button", { name: "Later" }).hasAttribute("disabled")).toBe(true);
  });

  it("has no link if the address does not lead to the chart", async () => {
    render(
      <MantineProvider>
        <CopyMenu call={CALL} link={false} />
      </MantineProvider>,
    );
    fireEvent.click(screen.getByRole("button", { name: "copy" }));
    expect(await screen.findByRole("button", { name: "as curl" })).toBeTruthy();
    expect(screen.queryByRole("button", { name: "as link" })).toBeNull();
  });
});
