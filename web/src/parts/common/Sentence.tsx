/** A sentence of the service, with what is between backticks as code, and without its full stop. */
export function Sentence({ text }: { text: string }) {
  return text
    .replace(/[.]$/, "")
    .split("`")
    .map((part, i) => (i % 2 === 1 ? <code key={i}>{part}</code> : part));
}
