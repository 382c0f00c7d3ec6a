/** Values of parameters as people type them: fields made from a search space, and what their text stands for. */

import type { Experiment } from "../../api/types";
import { category } from "../../format";
import { domainWords } from "../setup/Setup";

export interface Field {
  name: string;
  /** The domain in words: "loguniform(0.0001, 0.1)". */
  about: string;
  /** The values to choose from; null if it is typed. The text is what people read. */
  options: readonly Option[] | null;
}

interface Option {
  text: string;
  value: unknown;
}

/** The fields of the parameters of these names. `labels`: what the indices of choices stand for. */
export function fieldsOf({ space, labels }: Pick<Experiment, "space" | "labels">, names = Object.keys(space)): Field[] {
  return names.map((name) => {
    const domain = space[name] as { type?: unknown; categories?: unknown } | undefined;
    const indexed = labels[name];
    if (indexed) return { name, about: "choice", options: optionsOf(indexed, [...indexed.keys()]) };
    const categories = domain?.type === "choice" && Array.isArray(domain.categories) ? domain.categories : null;
    const plain = categories?.every((one) => one === null || typeof one !== "object") ?? false;
    return {
      name,
      about: domain === undefined ? "" : domainWords(domain),
      options: categories && plain ? optionsOf(categories, categories) : null,
    };
  });
}

/** The options with these labels. Different values with the same label, such as 1 and "1", have theirs in parentheses. */
function optionsOf(labels: readonly unknown[], values: readonly unknown[]): Option[] {
  const texts = labels.map(category);
  const written = values.map((value) => JSON.stringify(value));
  return texts.map((text, i) => {
    const clear = texts.every((other, j) => other !== text || written[j] === written[i]);
    return { text: clear ? text : `${text} (${written[i]})`, value: values[i] };
  });
}

/** The value that a text stands for: the parsed text if it is JSON, otherwise the text itself. */
export function valueOf(field: Field, text: string): unknown {
  if (field.options) {
    const option = field.options.find((one) => one.text === text);
    return option ? option.value : text;
  }
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

export function textOf(field: Field, value: unknown): string {
  const option = field.options?.find((one) => JSON.stringify(one.value) === JSON.stringify(value));
  if (option) return option.text;
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}

/** The values of the fields that are not empty. */
export function filled(fields: readonly Field[], texts: Readonly<Record<string, string>>): Record<string, unknown> {
  return Object.fromEntries(
    fields.flatMap((field) => {
      const text = texts[field.name]?.trim() ?? "";
      return text === "" ? [] : [[field.name, valueOf(field, text)]];
    }),
  );
}
