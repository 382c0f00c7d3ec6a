/** Show a sentence from the service: without its period, and with the text between backticks as code. */
export function Sentence({ text }: { text: string }) {
  return text
    .replace(/[.]$/, "")
    .split("`")
    .map((part, i) => (i % 2 === 1 ? <code key={i}>{part}</code> : part));
}
