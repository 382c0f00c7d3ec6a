import { expect, it } from "vitest";

const SOURCES = import.meta.glob<string>("./**/*.{ts,tsx}", { query: "?raw", import: "default", eager: true });
const STYLED = new Set(
  Object.keys(import.meta.glob("../node_modules/@mantine/core/styles/*.css")).map((path) =>
    path.replace(/^.*\/|\.css$/g, ""),
  ),
);

it("brings the styles of every component of Mantine that is used", () => {
  const imported = new Set([...SOURCES["./styles.ts"]!.matchAll(/styles\/(\w+)\.css/g)].map((match) => match[1]!));
  const used = new Set<string>();
  for (const source of Object.values(SOURCES)) {
    for (const [, names] of source.matchAll(/import \{([^}]+)\} from "@mantine\/core"/g)) {
      for (const name of names!.split(",")) used.add(name.trim());
    }
  }
  expect(used.size).toBeGreaterThan(10);
  expect(STYLED.has("Button")).toBe(true);
  expect([...used].filter((name) => STYLED.has(name) && !imported.has(name))).toEqual([]);
});
