import { Select as MantineSelect, type SelectProps } from "@mantine/core";
import { useState } from "react";

/**
 * Mantine's Select, whose options are made when it gets the focus. A page has many of these controls, and few are ever opened. From
 * then on the options stay: Mantine tells assistive technology that they are shown, and which of them is selected, only if they were
 * there before.
 */
export function Select<Value extends string = string>({ comboboxProps, onFocus, ...props }: SelectProps<Value>) {
  const [wanted, setWanted] = useState(false);
  return (
    <MantineSelect
      {...props}
      comboboxProps={{ ...comboboxProps, keepMounted: wanted }}
      onFocus={(event) => {
        setWanted(true);
        onFocus?.(event);
      }}
    />
  );
}
