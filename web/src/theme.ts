import { CloseIcon, createTheme, type CSSVariablesResolver, type MantineColorsTuple } from "@mantine/core";
import { createElement } from "react";

const indigo: MantineColorsTuple = [
  "#eef0fc",
  "#dadef3",
  "#b2bae4",
  "#8793d6",
  "#6472ca",
  "#4e5ec3",
  "#4253c0",
  "#3444aa",
  "#2d3c98",
  "#233386",
];

export const theme = createTheme({
  primaryColor: "tuner",
  primaryShade: { light: 6, dark: 3 },
  colors: { tuner: indigo },
  defaultRadius: "sm",
  fontFamily: "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', 'DejaVu Sans', sans-serif",
  fontFamilyMonospace: "ui-monospace, SFMono-Regular, Menlo, 'Liberation Mono', 'DejaVu Sans Mono', monospace",
  headings: { fontWeight: "600" },
  fontSizes: { xs: "12px", sm: "13px", md: "14px", lg: "16px", xl: "20px" },
  cursorType: "pointer",
  respectReducedMotion: true,
  components: {
    // A menu may contain items only; without the placeholder, its first item is in focus.
    Menu: { defaultProps: { withInitialFocusPlaceholder: false } },
    // These icons say nothing that their controls do not say, and would be read as images without a name.
    ComboboxChevron: { defaultProps: { "aria-hidden": true } },
    CloseButton: { defaultProps: { icon: createElement(CloseIcon, { "aria-hidden": true }) } },
    ModalCloseButton: { defaultProps: { "aria-label": "Close" } },
    // The page has one banner: its header. Dialogs have header elements, too, which would count as others.
    ModalHeader: { defaultProps: { role: "none" } },
    DrawerHeader: { defaultProps: { role: "none" } },
  },
});

/** Colors of text with a contrast of at least 4.5 to 1 on everything that they stand on. */
export const variables: CSSVariablesResolver = () => ({
  variables: {},
  light: {
    "--mantine-color-dimmed": "#5c6470",
    "--mantine-color-placeholder": "#667080",
    "--mantine-color-anchor": "#3444aa",
    "--mantine-color-error": "#c92a2a",
    "--mantine-color-red-text": "#c92a2a",
    "--mantine-color-yellow-light-color": "#7a4f00",
    "--combobox-chevron-color": "#4a515c",
    "--tuner-link": "#3444aa",
    // White text stands on these.
    "--mantine-color-red-filled": "#c92a2a",
    "--mantine-color-red-filled-hover": "#b02525",
  },
  dark: {
    "--mantine-color-dimmed": "#a3abb9",
    "--mantine-color-placeholder": "#949cab",
    "--mantine-color-anchor": "#a9b4f0",
    "--mantine-color-error": "#ff8787",
    "--combobox-chevron-color": "#ced4de",
    "--tuner-link": "#a9b4f0",
    "--mantine-color-body": "#1a1c21",
    "--mantine-color-yellow-light": "rgba(250, 176, 5, 0.1)",
    // White text stands on these.
    "--mantine-color-tuner-filled": "#5a6ad0",
    "--mantine-color-tuner-filled-hover": "#4e5ec3",
    "--mantine-color-red-filled": "#c92a2a",
    "--mantine-color-red-filled-hover": "#b02525",
  },
});
