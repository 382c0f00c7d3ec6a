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

/** Matches a text that may have a whole number above 2^53. */
const LARGE = /[:[,]\s*-?\d{16,}\s*[,\]}]/;
/** The members with values of parameters, and seeds. */
const WITH_DIGITS: ReadonlySet<string> = new Set(["params", "best_params", "categories", "values", "labels", "seed"]);

/** Parse an answer. Parameters and seeds keep all digits: those above 2^53 are BigInts. All other whole numbers are numbers. */
export function parsed(text: string): unknown {
  return LARGE.test(text) ? withDigits(exactly(text), false) : (JSON.parse(text) as unknown);
}

function withDigits(value: unknown, keeps: boolean): unknown {
  if (typeof value === "bigint") return keeps ? value : Number(value);
  if (Array.isArray(value)) return value.map((one) => withDigits(one, keeps));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, one]) => [name, withDigits(one, keeps || WITH_DIGITS.has(name))]),
  );
}

/** Return a value as a number if it is a BigInt, for axes, where digits do not matter. */
export function asNumber(value: unknown): unknown {
  return typeof value === "bigint" ? Number(value) : value;
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
