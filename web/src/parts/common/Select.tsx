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
      // The arrow says nothing, and would be read as an image without a name. The button that clears the choice stands beside it.
      {...(props.clearable ? {} : { rightSectionProps: { "aria-hidden": true } })}
      comboboxProps={{ ...comboboxProps, keepMounted: wanted }}
      onFocus={(event) => {
        setWanted(true);
        onFocus?.(event);
      }}
    />
  );
}
