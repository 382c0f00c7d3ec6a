/** Where the columns of the table of trials are drawn. */

import type { CSSProperties } from "react";
import type { Column } from "./trialColumns";

export const NUMBER_WIDTH = 92;
export const PINNED_WIDTH = 140;

/** A column that is drawn. */
export interface Place {
  column: Column;
  /** The distance from the left edge at which a pinned column stays; null for the others. */
  pinned: number | null;
  /** The index among all columns that are shown. */
  index: number;
  /** The column is as wide as a pinned one, so that it can be left out while it is not in view. */
  narrow: boolean;
}

/** A column, or a gap as wide as the columns that are not in view. */
export type Drawn = Place | { gap: number };

export function placeStyle({ pinned, column: { id }, narrow }: Place): CSSProperties | undefined {
  if (pinned === null && !narrow) return undefined;
  const width = id === "number" ? NUMBER_WIDTH : PINNED_WIDTH;
  return { ...(pinned === null ? {} : { left: pinned }), minWidth: width, maxWidth: width };
}

export function gapStyle(width: number): CSSProperties {
  return { minWidth: width, maxWidth: width, padding: 0 };
}
