/** Whole numbers above 2^53, such as seeds. They are read as BigInt, so that they are sent back with all digits. */

// Where JSON.stringify is called directly, such as for words on the page. Older browsers round there.
Object.assign(BigInt.prototype, {
  toJSON(this: bigint) {
    return (JSON as { rawJSON?: (text: string) => unknown }).rawJSON?.(String(this)) ?? Number(this);
  },
});

/** Begins a text that stands for a number. */
const MARK = "\u0001";

/** Parse JSON. */
export function exactly(text: string): unknown {
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (token) =>
    /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token)) ? JSON.stringify(MARK + token) : token,
  );
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(1)) : value,
  ) as unknown;
}

/** Return true if a value that was read without `exactly` has a whole number that may have lost digits. */
export function mayBeRounded(value: unknown): boolean {
  if (value !== null && typeof value === "object") return Object.values(value).some(mayBeRounded);
  return Number.isInteger(value) && !Number.isSafeInteger(value);
}

/** Write JSON. */
export function exactText(value: unknown): string {
  return JSON.stringify(value, function (this: Record<string, unknown>, name, one: unknown) {
    return typeof this[name] === "bigint" ? MARK + String(this[name]) : one;
  }).replace(/"\\u0001(-?\d+)"/g, "$1");
}

/** A whole number of a YAML document: a BigInt only if it needs one. */
export function smallest(value: unknown): unknown {
  return typeof value === "bigint" && Number.isSafeInteger(Number(value)) ? Number(value) : value;
}
