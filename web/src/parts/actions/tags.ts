/** Labels of experiments as people type them. */

/** "team=vision, urgent" as tags. Keys of `old` that are gone become null, which removes them. */
export function tagsOf(text: string, old: Readonly<Record<string, string>>): Record<string, string | null> {
  const found: Record<string, string | null> = Object.fromEntries(Object.keys(old).map((key) => [key, null]));
  for (const part of text.split(/[,\n]/)) {
    const [key = "", ...rest] = part.split("=");
    if (key.trim() !== "") found[key.trim()] = rest.join("=").trim();
  }
  return Object.fromEntries(Object.entries(found).filter(([key, value]) => old[key] !== value));
}

export function tagsText(tags: Readonly<Record<string, string>>): string {
  return Object.entries(tags)
    .map(([key, value]) => (value === "" ? key : `${key}=${value}`))
    .join(", ");
}
