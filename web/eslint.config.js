import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import globals from "globals";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: ["node_modules", "src/api/schema.ts"] },
  js.configs.recommended,
  typescript.configs.recommendedTypeChecked,
  {
    // Half of the time of these rules would go to the tests, which have hardly a component of their own.
    ignores: ["**/*.test.*"],
    extends: [hooks.configs.flat.recommended],
    rules: {
      "react-hooks/exhaustive-deps": "error",
      // It warns of libraries that the React compiler cannot handle, which is not used here.
      "react-hooks/incompatible-library": "off",
    },
  },
  {
    languageOptions: {
      globals: globals.browser,
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }],
    },
  },
  { files: ["**/*.js"], extends: [typescript.configs.disableTypeChecked] },
);
