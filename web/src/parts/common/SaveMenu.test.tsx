import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import { curvesCall } from "../../charts/copies";
import { STEP } from "../../curves/across";
import { CopyMenu } from "./CopyMenu";
import { SaveMenu } from "./SaveMenu";

const CALL = curvesCall("exp_1", "loss", STEP);

const show = (node: ReactNode, client = new QueryClient()) =>
  render(
    <MantineProvider>
      <QueryClientProvider client={client}>{node}</QueryClientProvider>
    </MantineProvider>,
  );

beforeEach(() => void vi.spyOn(api, "session").mockReturnValue(new Promise(() => {})));
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  Reflect.deleteProperty(document, "execCommand");
});

describe("what a chart offers", () => {
  it("includes its numbers as a table, one page at a time", async () => {
    const points = Array.from({ length: 450 }, (_, i) => [1_000_000 + i, i === 0 ? null : 0.123456789 * i]);
    show(<SaveMenu name="digits loss" rows={() => [["step", "loss"], ...points]} call={CALL} />);
    fireEvent.click(screen.getByRole("button", { name: "save" }));
    fireEvent.click(await screen.findByRole("button", { name: "show as table" }));
    const dialog = within(await screen.findByRole("dialog"));
    const table = within(await dialog.findByRole("table"));
    expect(table.getAllByRole("columnheader").map((one) => one.textContent)).toEqual(["step", "loss"]);
    expect(table.getAllByRole("row")).toHaveLength(201);
    expect(table.getAllByRole("row")[1]!.textContent).toBe("1000000–");
    expect(dialog.getByRole("status").textContent).toBe("Rows 1 to 200 of 450");
    fireEvent.click(dialog.getByRole("button", { name: "Later" }));
    fireEvent.click(dialog.getByRole("button", { name: "Later" }));
    expect(dialog.getByRole("status").textContent).toBe("Rows 401 to 450 of 450");
    expect(table.getAllByRole("row")[1]!.textContent).toBe("100040049.3827");
    expect(dialog.getByRole("button", { name: "Later" }).hasAttribute("disabled")).toBe(true);
  });

  it("includes a file that has the name of the experiment, in any script", async () => {
    vi.spyOn(URL, "createObjectURL").mockReturnValue("blob:1");
    const saved = vi.spyOn(HTMLAnchorElement.prototype, "click").mockReturnValue();
    show(<SaveMenu name="größe/数字 損失" picture={false} rows={() => [["step"]]} call={CALL} />);
    fireEvent.click(screen.getByRole("button", { name: "CSV" }));
    await waitFor(() => expect(saved).toHaveBeenCalled());
    expect((saved.mock.contexts[0] as HTMLAnchorElement).download).toBe("größe_数字_損失.csv");
  });

  it("has no link if the address does not lead to the chart", async () => {
    show(<CopyMenu call={CALL} link={false} />);
    fireEvent.click(screen.getByRole("button", { name: "copy" }));
    expect(await screen.findByRole("button", { name: "as curl" })).toBeTruthy();
    expect(screen.queryByRole("button", { name: "as link" })).toBeNull();
  });

  it.each([
    [true, 'curl -H "Authorization: Bearer $TUNER_TOKEN" --get'],
    [false, "curl --get"],
  ])("sends a token as curl if the service asks for one: %s", async (required, begin) => {
    let copied = "";
    vi.stubGlobal("isSecureContext", false);
    const execCommand = () => ((copied = document.querySelector<HTMLTextAreaElement>("body > textarea")!.value), true);
    Object.assign(document, { execCommand });
    const client = new QueryClient();
    client.setQueryData(["session"], { required, name: "ada", role: "viewer" });
    show(<CopyMenu call={CALL} />, client);
    fireEvent.click(screen.getByRole("button", { name: "copy" }));
    fireEvent.click(await screen.findByRole("button", { name: "as curl" }));
    await screen.findByText("copied");
    expect(copied.slice(0, begin.length)).toBe(begin);
  });
});
