import { readdirSync, readFileSync } from "node:fs";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";
import { askEarly, type Wanted } from "./src/api/early.ts";
import { COLUMNS } from "./src/api/columns.ts";
import { DECISIONS, POINTS, ROWS, SAMPLE } from "./src/api/sizes.ts";

interface Modules {
  getModuleInfo: (id: string) => { importedIds: readonly string[] } | null;
}

// `npm run dev` talks to a service on this machine: `tuner serve` in another terminal.
const service = { target: "http://127.0.0.1:8000", changeOrigin: true };

/** Puts a script into index.html that begins to load the page of an experiment, and its data, before the bundle runs. */
function early(): Plugin {
  return {
    name: "early",
    apply: "build",
    transformIndexHtml: {
      order: "post",
      handler(html, { bundle = {} }) {
        const chunks = Object.values(bundle).flatMap((one) => (one.type === "chunk" ? [one] : []));
        const page = chunks.find((one) => one.moduleIds.some((id) => id.endsWith("/pages/ExperimentPage.tsx")));
        if (!page) throw new Error("the bundle has no chunk of its own for the page of an experiment");
        const files = new Set<string>();
        const add = (name: string) => {
          const chunk = chunks.find((one) => one.fileName === name);
          if (!chunk || files.has(name)) return;
          files.add(name);
          for (const file of chunk.viteMetadata?.importedCss ?? []) files.add(file);
          chunk.imports.forEach(add);
        };
        add(page.fileName);
        // What every page needs is in index.html already.
        const wanted: Wanted = {
          files: [...files].filter((file) => !html.includes(file)),
          columns: COLUMNS,
          points: POINTS,
          sample: SAMPLE,
          rows: ROWS,
          decisions: DECISIONS,
        };
        return [
          { tag: "script", injectTo: "head-prepend", children: `(${askEarly.toString()})(${JSON.stringify(wanted)})` },
        ];
      },
    },
  };
}

/**
 * Return the chunk of a module: one for what the first page and an experiment's page share, and one for the rest of an experiment's
 * page. Left to itself, the bundler makes twenty small ones, each of which is a request.
 */
function chunkOf(id: string, modules: Modules): string | null {
  const of = (page: string) => reached(`${import.meta.dirname}/src/${page}`, modules);
  if (of("main.tsx").has(id) || !of("pages/ExperimentPage.tsx").has(id)) return null;
  return of("pages/ExperimentsPage.tsx").has(id) ? "common" : "experiment";
}

const known = new Map<string, Set<string>>();

/** Return the modules that one imports, directly or through others, without those that are loaded later. */
function reached(entry: string, modules: Modules): Set<string> {
  let found = known.get(entry);
  if (found) return found;
  found = new Set([entry]);
  for (const id of found) for (const next of modules.getModuleInfo(id)?.importedIds ?? []) found.add(next);
  known.set(entry, found);
  return found;
}

const TESTS = ["src/**/*.test.{ts,tsx}"];
const SOURCES = `${import.meta.dirname}/src`;
/** Tests that replace modules or the document. A module that another file has loaded before could not be replaced. */
const ISOLATED = [
  "src/api/early.test.ts",
  "src/parts/common/SignIn.test.tsx",
  ...readdirSync(SOURCES, { recursive: true, encoding: "utf8" })
    .filter((file) => /[.]test[.]tsx?$/.test(file) && readFileSync(`${SOURCES}/${file}`, "utf8").includes("vi.mock("))
    .map((file) => `src/${file}`),
];

export default defineConfig({
  // Addresses in the bundle are relative: a proxy may serve it under a path prefix.
  base: "./",
  plugins: [react(), early()],
  server: { host: "127.0.0.1", proxy: { "/api": service, "/openapi.json": service } },
  build: {
    outDir: "../tuner/_web",
    emptyOutDir: true,
    chunkSizeWarningLimit: 900,
    // Browsers that do not know modulepreload (Safari before 17) load the modules a little later.
    modulePreload: { polyfill: false },
    // One style sheet: all of them together are smaller than one script, and each request costs more than its bytes.
    cssCodeSplit: false,
    rolldownOptions: {
      output: {
        codeSplitting: {
          includeDependenciesRecursively: false,
          groups: [
            { name: "base", tags: ["$initial"], priority: 3 },
            { name: chunkOf, debugName: "pages", priority: 2 },
            // Not needed before somebody opens a form or a dialog.
            {
              name: "forms",
              test: /react-number-format|react-remove-scroll|(NumberInput|PasswordInput|Textarea|Switch|Modal|ModalBase)\//,
              minShareCount: 2,
              priority: 2,
            },
            { name: "controls", test: /node_modules/, minShareCount: 2, priority: 1 },
          ],
        },
      },
    },
  },
  // `make test` runs these tests at a low priority: on a busy machine, one that takes a second alone can take more than half a minute.
  test: {
    testTimeout: 180_000,
    environment: "happy-dom",
    setupFiles: ["src/test/setup.ts"],
    // Files share their modules and their document, which takes a third of the time. Those that replace what modules load, or the
    // document itself, have their own.
    projects: [
      { extends: true, test: { name: "shared", isolate: false, include: TESTS, exclude: ISOLATED } },
      { extends: true, test: { name: "isolated", include: ISOLATED } },
    ],
    // In happy-dom, which has no layout, a dialog finds nothing that can have the focus, and prints its whole tree.
    onConsoleLog: (log) => !log.includes("use-focus-trap"),
    // `make test` runs a test that failed once more (`--retry=1`), and lists such tests.
    reporters: [
      "default",
      {
        onTestCaseResult: (test) => {
          if (test.diagnostic()?.flaky) console.log(`passed only at the second try: ${test.fullName}`);
        },
      },
    ],
  },
});
