/** Labels of experiments as people type them. */

/** A label: up to a comma that is not inside quotes. Quotes count only at the start of a key or value. */
const LABEL = /(?:(?<=(?:^|[,\n=])\s*)"(?:[^"\\]|\\.)*"|[^,\n])+/g;

/** "team=vision, urgent" as tags. Keys of `old` that are gone become null, which removes them. */
export function tagsOf(text: string, old: Readonly<Record<string, string>>): Record<string, string | null> {
  const found: Record<string, string | null> = Object.fromEntries(Object.keys(old).map((key) => [key, null]));
  for (const label of text.match(LABEL) ?? []) {
    const [key = "", ...rest] = label.split("=");
    if (key.trim() !== "") found[read(key)] = read(rest.join("="));
  }
  return Object.fromEntries(Object.entries(found).filter(([key, value]) => old[key] !== value));
}

export function tagsText(tags: Readonly<Record<string, string>>): string {
  return Object.entries(tags)
    .map(([key, value]) => (value === "" ? written(key) : `${written(key)}=${written(value)}`))
    .join(", ");
}

/** The text that was typed, without its quotes if it has any. */
function read(typed: string): string {
  const text = typed.trim();
  try {
    return text.startsWith('"') ? String(JSON.parse(text)) : text;
  } catch {
    return text;
  }
}

/** A text in quotes if it would not be read as the same text otherwise. */
function written(text: string): string {
  return /[,\n]|^"/.test(text) || text.trim() !== text ? JSON.stringify(text) : text;
}
