import { MantineProvider } from "@mantine/core";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { useState } from "react";
import { afterEach, expect, it } from "vitest";
import { type } from "../../test/typing";
import { NumberField } from "./NumberField";

afterEach(cleanup);

/** Show a field whose value is kept here, and return it with the values that it reports. */
function show(first: number | "" = "") {
  const reported: (number | "")[] = [];
  function Form() {
    const [value, setValue] = useState<number | "">(first);
    const set = (next: number | "") => {
      reported.push(next);
      setValue(next);
    };
    return (
      <>
        <NumberField label="Amount" min={-5} max={50} value={value} onChange={set} />
        <button onClick={() => setValue(7)}>seven</button>
      </>
    );
  }
  render(
    <MantineProvider env="test">
      <Form />
    </MantineProvider>,
  );
  return { field: screen.getByLabelText<HTMLInputElement>("Amount"), reported };
}

it.each(["0.95", "0.05", "1.0", "1.05", "10.5", "-3", "0", "0.50", "1e1", "1.5E+1", "-1e-4", "25e-3"])(
  "keeps %s while it is typed",
  (text) => {
    const { field, reported } = show();
    type(field, text);
    expect([field.value, reported.at(-1)]).toEqual([text, Number(text)]);
  },
);

it("reports nothing until a digit is typed, and again once it is empty", () => {
  const { field, reported } = show(1);
  type(field, "-");
  expect([field.value, reported.at(-1)]).toEqual(["-", ""]);
  type(field, "");
  expect([field.value, reported.at(-1)]).toEqual(["", ""]);
});

it("brings the number within its limits when the focus moves on, and shows a value that is set elsewhere", () => {
  const { field, reported } = show();
  type(field, "100.0");
  fireEvent.blur(field);
  expect([field.value, reported.at(-1)]).toEqual(["50", 50]);
  type(field, "1e-");
  fireEvent.blur(field);
  expect([field.value, reported.at(-1)]).toEqual(["", ""]);
  type(field, "1e-4");
  fireEvent.blur(field);
  expect([field.value, reported.at(-1)]).toEqual(["1e-4", 1e-4]);
  type(field, "0.");
  fireEvent.click(screen.getByText("seven"));
  expect(field.value).toBe("7");
});

it.each([
  ["0,05", "0.05", 0.05],
  ["1,5e-3", "1.5e-3", 0.0015],
  ["x = 1 e1.", "1e1", 10],
  ["e5", "5", 5],
  ["1e-", "1e-", ""],
  ["1e999", "1e999", ""],
])("shows %s as %s, which is %s", (text, shown, number) => {
  const { field, reported } = show();
  type(field, text);
  expect([field.value, reported.at(-1)]).toEqual([shown, number]);
});

it("takes a number that is pasted, even with commas between its thousands", () => {
  const { field } = show();
  for (const [text, shown] of [
    ["-1,234.5", "-1234.5"],
    ["1,234,567", "1234567"],
    ["1e-4\n", "1e-4"],
  ]) {
    fireEvent.change(field, { target: { value: text } });
    expect(field.value).toBe(shown);
  }
});

it("goes up and down by the keys and the buttons, within its limits", () => {
  const { field, reported } = show(0.1);
  fireEvent.keyDown(field, { key: "ArrowUp" });
  expect(field.value).toBe("1.1");
  type(field, "49.5");
  fireEvent.keyDown(field, { key: "ArrowUp" });
  const [up, down] = field.parentElement!.querySelectorAll("button");
  expect([field.value, up!.disabled]).toEqual(["50", true]);
  fireEvent.click(down!);
  expect(reported.at(-1)).toBe(49);
});
