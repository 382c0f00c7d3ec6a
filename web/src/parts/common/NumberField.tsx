import { NumberInput, type NumberInputProps } from "@mantine/core";
import { useState } from "react";

interface NumberFieldProps extends Omit<NumberInputProps, "value" | "onChange"> {
  /** "" for an empty field. */
  value: number | "";
  onChange: (value: number | "") => void;
}

/**
 * A field for a number. While "0." or "1.0" is being typed, NumberInput reports a text. This field keeps the text on the
 * screen, and reports the number that it stands for.
 */
export function NumberField({ value, onChange, ...rest }: NumberFieldProps) {
  const [typed, setTyped] = useState<number | string>(value);
  return (
    <NumberInput
      {...rest}
      value={numberIn(typed) === value ? typed : value}
      onChange={(next) => {
        setTyped(next);
        onChange(numberIn(next));
      }}
    />
  );
}

/** The number that was typed so far; "" if it is none yet, such as "-". */
function numberIn(typed: number | string): number | "" {
  return typed === "" || !Number.isFinite(Number(typed)) ? "" : Number(typed);
}
