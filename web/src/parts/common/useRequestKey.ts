import { useState } from "react";
import { exactText } from "../../api/exact";

/**
 * Return a function that gives each request of this visit an idempotency key. The same content gets the same key, so
 * that a repeated request creates nothing twice; other content gets another key, as the service requires.
 */
export function useRequestKey(): (content: unknown) => string {
  const [keys] = useState(() => new Map<string, string>());
  return (content) => {
    const text = exactText(content);
    const key = keys.get(text) ?? crypto.randomUUID?.() ?? String(Math.random());
    keys.set(text, key);
    return key;
  };
}
