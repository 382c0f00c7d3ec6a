import { fireEvent } from "@testing-library/react";

/** Empty a field and type a text into it, one character at a time, as people do. */
export function type(field: HTMLInputElement, text: string): void {
  fireEvent.change(field, { target: { value: "" } });
  for (const character of text) fireEvent.change(field, { target: { value: field.value + character } });
}
