import { parseDocument } from "yaml";

/** Parse a YAML text as a mapping, or say why it is not one. `example`: a line of a mapping. */
export function readMapping(text: string, example: string): [Readonly<Record<string, unknown>>, null] | [null, string] {
  const document = parseDocument(text);
  if (document.errors.length > 0) return [null, document.errors.map((error) => error.message.trim()).join("\n\n")];
  const found: unknown = document.toJS();
  if (found !== null && typeof found === "object" && !Array.isArray(found))
    return [found as Readonly<Record<string, unknown>>, null];
  return [null, `Expected a mapping: a line for each field, such as ${example}`];
}
