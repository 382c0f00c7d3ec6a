import { useState } from "react";

/** Return the value that was given first with these keys, so that what depends on its identity is not computed again. */
export function useSame<T>(value: T, keys: readonly unknown[]): T {
  const [kept, keep] = useState({ value, keys });
  if (kept.keys.length === keys.length && keys.every((key, i) => Object.is(key, kept.keys[i]))) return kept.value;
  keep({ value, keys });
  return value;
}
