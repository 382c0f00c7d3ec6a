import { parseDocument } from "yaml";

/** The mapping that a text in YAML is, or why it is none. `example`: a line of it. */
export function readMapping(text: string, example: string): [Readonly<Record<string, unknown>>, null] | [null, string] {
  const document = parseDocument(text);
  if (document.errors.length > 0) return [null, document.errors.map((error) => error.message.trim()).join("\n\n")];
  const found: unknown = document.toJS();
  if (found !== null && typeof found === "object" && !Array.isArray(found))
    return [found as Readonly<Record<string, unknown>>, null];
  return [null, `Expected a mapping: a line for each field, such as ${example}`];
}
