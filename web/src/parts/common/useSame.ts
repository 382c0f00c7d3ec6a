import { useState } from "react";

/** Return the value that was given first with this key, so that what depends on its identity is not computed again. */
export function useSame<T>(value: T, key: string): T {
  const [kept, keep] = useState({ value, key });
  if (kept.key === key) return kept.value;
  keep({ value, key });
  return value;
}
