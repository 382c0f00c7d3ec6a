/** How much is read at once; the script of index.html asks for the same. */

/** Charts show all trials of an experiment that has no more than this, and a sample of a larger one. */
export const SAMPLE = 1000;
/** Rows of the table. */
export const ROWS = 200;
/** Points of the longest curve. */
export const POINTS = 400;
