import { TextInput, type TextInputProps } from "@mantine/core";
import { useState, type KeyboardEvent } from "react";
import classes from "./NumberField.module.css";

interface NumberFieldProps extends Omit<TextInputProps, "value" | "onChange" | "min" | "max"> {
  /** "" for an empty field. */
  value: number | "";
  onChange: (value: number | "") => void;
  min?: number;
  max?: number;
  allowDecimal?: boolean;
  allowNegative?: boolean;
}

/**
 * A field for a number, with a point or a comma and with an exponent, such as 1e-4. It keeps on the screen what was typed, and
 * reports the number that this stands for. Mantine's NumberInput drops the letter of an exponent, so that 1e3 becomes 13.
 */
export function NumberField({
  value,
  onChange,
  min = -Infinity,
  max = Infinity,
  allowDecimal = true,
  allowNegative = true,
  ...rest
}: NumberFieldProps) {
  const [typed, setTyped] = useState("");
  const shown = numberIn(typed) === value ? typed : String(value);
  const set = (text: string) => {
    setTyped(text);
    if (numberIn(text) !== value) onChange(numberIn(text));
  };
  const within = (one: number) => Math.min(Math.max(one, min), max);
  const type = (text: string) => {
    const plain = plainIn(text);
    const kind = allowDecimal ? DECIMAL : WHOLE;
    if (kind.test(plain) && (allowNegative || !plain.startsWith("-"))) set(plain);
  };
  const step = (by: number) => {
    // Without the digits that only rounding brings, such as those of 0.1 + 1.
    const next = value === "" ? 0 : Number((value + by).toPrecision(15));
    set(String(within(next)));
  };
  /** Bring the number within its limits. What is no number vanishes. */
  const leave = () => {
    if (value === "") set("");
    else set(within(value) === value ? shown.replace(/^(-?)0+(?=\d)/, "$1") : String(within(value)));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    step(event.key === "ArrowUp" ? 1 : -1);
  };
  return (
    <TextInput
      {...rest}
      inputMode="decimal"
      value={shown}
      onChange={(event) => type(event.currentTarget.value)}
      onBlur={leave}
      onKeyDown={onKeyDown}
      rightSectionWidth={rest.size === "xs" ? 18 : 24}
      rightSection={
        // The keys do the same. Pressing a button leaves the focus in the field.
        <span className={classes.steps} data-steps aria-hidden onMouseDown={(event) => event.preventDefault()}>
          <button type="button" tabIndex={-1} disabled={value !== "" && value >= max} onClick={() => step(1)}>
            <Chevron points="1,5 4,2 7,5" />
          </button>
          <button type="button" tabIndex={-1} disabled={value !== "" && value <= min} onClick={() => step(-1)}>
            <Chevron points="1,2 4,5 7,2" />
          </button>
        </span>
      }
    />
  );
}

function Chevron({ points }: { points: string }) {
  return (
    <svg width="8" height="7" viewBox="0 0 8 7">
      <polyline points={points} fill="none" stroke="currentColor" strokeWidth="1.2" />
    </svg>
  );
}

const DECIMAL = /^-?\d*\.?\d*(\de[+-]?\d*)?$/i;
const WHOLE = /^-?\d*(\de\+?\d*)?$/i;

/** The text without what cannot belong to a number, with a point for a comma. Commas between thousands are dropped. */
function plainIn(text: string): string {
  const plain = text.replace(/[^\d.,e+-]/gi, "");
  return plain.includes(".") || plain.indexOf(",") !== plain.lastIndexOf(",")
    ? plain.replaceAll(",", "")
    : plain.replace(",", ".");
}

/** The number that was typed so far; "" for text that is not a number yet, such as "-" or "1e". */
function numberIn(typed: string): number | "" {
  return typed === "" || !Number.isFinite(Number(typed)) ? "" : Number(typed);
}
