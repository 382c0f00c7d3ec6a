import { isScalar, parseDocument, type ParsedNode, type YAMLError } from "yaml";
import { smallest } from "../../api/exact";

/** Parse a YAML text as a mapping, or say why it is not one. `example`: a line of a mapping. */
export function readMapping(text: string, example: string): [Readonly<Record<string, unknown>>, null] | [null, string] {
  const document = parseDocument(text, { intAsBigInt: true, uniqueKeys: isSameKey });
  if (document.errors.length > 0) return [null, firstOf(document.errors)];
  const found: unknown = document.toJS({ reviver: (_, value) => smallest(value) });
  if (found !== null && typeof found === "object" && !Array.isArray(found))
    return [found as Readonly<Record<string, unknown>>, null];
  return [null, `Expected a mapping: a line for each field, such as ${example}`];
}

/** The first error, with the line that has it: the others mostly follow from it. */
function firstOf([first]: readonly YAMLError[]): string {
  // An empty line, the line before the error, the line with the error, and a caret below it follow the error.
  const [what, ...lines] = first!.message.trim().split("\n");
  const line = lines.at(-2)?.trim();
  return line ? `${what} ${line}` : what!.replace(/:$/, "");
}

/** Whether two keys are the same in JSON, as 1 and "1" are: the value of one of them would be lost. */
function isSameKey(one: ParsedNode, other: ParsedNode): boolean {
  return one === other || (isScalar(one) && isScalar(other) && String(one.value) === String(other.value));
}
