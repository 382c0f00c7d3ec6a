/** The numbers of a forecast, with their meaning. */

import type { Experiment, Forecast } from "../api/types";
import { duration, number } from "../format";

type End = NonNullable<Forecast["end"]>;
type Best = NonNullable<Forecast["best"]>;

/** Say what the number "Ends in" includes. */
export function endTitle({ seconds, starting }: Pick<End, "seconds" | "starting">): string {
  const about = `About ${duration(seconds.expected)}. The end lies in this interval with a probability of 80 %.`;
  return starting > 0
    ? `${about} It includes ${duration(starting)} in which trials start again; earlier starts took this long. Waiting for resources and later pauses are not included.`
    : `${about} Later pauses are not included.`;
}

/**
 * Return the best value that is expected at the end, and what it means. `open`: the interval reaches the end of the scale, so that it
 * does not say how much the best value may improve.
 */
export function bestFigure(best: Best, open: boolean, mode: Experiment["mode"]): { value: string; title: string } {
  if (open) {
    const worst = expected(mode === "min" ? best.high : best.low);
    return {
      value: `about ${expected(best.expected)}`,
      title: `It is ${worst} at worst. How much better it may become is not known.`,
    };
  }
  return {
    value: `${expected(best.low)} to ${expected(best.high)}`,
    title: `About ${expected(best.expected)}. The best value will lie in this interval with a probability of 80 %. It cannot become worse than it is now.`,
  };
}

/** A forecast value, with the three digits that the outlook has. */
function expected(value: number): string {
  return number(Number(value.toPrecision(3)));
}
