/** The numbers of items to read at once. The script of index.html asks for the same numbers. */

/** Charts show all trials of an experiment that has no more than this, and a sample of a larger one. */
export const SAMPLE = 1000;
/** Rows of the table. */
export const ROWS = 200;
/** Points of the longest curve. */
export const POINTS = 400;
/** Points of the longest curve in a file with the numbers of curves: all of them, unless a trial has reported more often. */
export const EVERY_POINT = 100_000;
/** Decisions. */
export const DECISIONS = 200;
/** Neighbors of a trial. */
export const NEIGHBORS = 10;
