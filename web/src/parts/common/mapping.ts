import { isScalar, parseDocument, type ParsedNode } from "yaml";
import { smallest } from "../../api/exact";

/** Parse a YAML text as a mapping, or say why it is not one. `example`: a line of a mapping. */
export function readMapping(text: string, example: string): [Readonly<Record<string, unknown>>, null] | [null, string] {
  const document = parseDocument(text, { intAsBigInt: true, uniqueKeys: isSameKey });
  if (document.errors.length > 0) return [null, document.errors.map((error) => error.message.trim()).join("\n\n")];
  const found: unknown = document.toJS({ reviver: (_, value) => smallest(value) });
  if (found !== null && typeof found === "object" && !Array.isArray(found))
    return [found as Readonly<Record<string, unknown>>, null];
  return [null, `Expected a mapping: a line for each field, such as ${example}`];
}

/** Whether two keys are the same in JSON, as 1 and "1" are: the value of one of them would be lost. */
function isSameKey(one: ParsedNode, other: ParsedNode): boolean {
  return one === other || (isScalar(one) && isScalar(other) && String(one.value) === String(other.value));
}
