import { useState, type ChangeEvent } from "react";

/**
 * Return the properties of a text field whose value is kept in the address. The address is drawn when there is time, and the next key
 * may be pressed before that, so the field shows what was typed until the focus leaves it.
 */
export function useTyped(value: string, onType: (text: string) => string) {
  const [typed, setTyped] = useState<string | null>(null);
  return {
    value: typed ?? value,
    onChange: (event: ChangeEvent<HTMLInputElement>) => setTyped(onType(event.currentTarget.value)),
    onBlur: () => setTyped(null),
  };
}
