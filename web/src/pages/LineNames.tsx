import { useComputedColorScheme } from "@mantine/core";
import type { Series } from "../api/types";
import { identityColour } from "../curves/colours";
import classes from "./ComparePage.module.css";

interface LineNamesProps {
  series: readonly Series[];
  names: readonly string[];
}

/** Name the lines of a comparison, in the colors of the columns of its table. */
export function LineNames({ series, names }: LineNamesProps) {
  const theme = useComputedColorScheme("light");
  return (
    <ul className={classes.legend} aria-label="Lines">
      {series.map((one, i) => (
        <li key={one.trial_id}>
          <i style={{ background: identityColour(i, theme) }} aria-hidden />
          {names[i]}
          {one.segments.length === 0 ? ": no value" : one.state === "failed" ? ", failed" : ""}
        </li>
      ))}
    </ul>
  );
}
