import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// `npm run dev` talks to a service on this machine: `tuner serve` in another terminal.
const service = { target: "http://127.0.0.1:8000", changeOrigin: true };

export default defineConfig({
  // Addresses in the bundle are relative: a proxy may serve it under a path prefix.
  base: "./",
  plugins: [react()],
  server: { host: "127.0.0.1", proxy: { "/api": service, "/openapi.json": service } },
  build: { outDir: "../tuner/_web", emptyOutDir: true, chunkSizeWarningLimit: 900 },
  // A busy machine takes seconds to find something by its role in three hundred rows.
  test: {
    testTimeout: 30_000,
    environment: "happy-dom",
    include: ["src/**/*.test.{ts,tsx}"],
    setupFiles: ["src/test/setup.ts"],
  },
});
