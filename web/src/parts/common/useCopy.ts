import { useState } from "react";
import { copyText } from "../../charts/copies";

/** Copy texts to the clipboard. `copied` is the name under which the last one was copied. */
export function useCopy() {
  const [copied, setCopied] = useState<string | null>(null);
  const [error, setError] = useState<string | null>(null);
  const copy = async (name: string, text: string) => {
    try {
      await copyText(text);
      setCopied(name);
      setError(null);
    } catch (problem) {
      setCopied(null);
      setError(problem instanceof Error ? problem.message : String(problem));
    }
  };
  return { copied, error, copy };
}
