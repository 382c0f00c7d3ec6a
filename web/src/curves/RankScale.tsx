import { useComputedColorScheme } from "@mantine/core";
import { palette, rankedOf } from "./colours";
import classes from "./curves.module.css";

interface RankScaleProps {
  rank: ReadonlyMap<number, number>;
  /** What the ranks are made from, such as "accuracy", and an explanation of it. */
  by?: string | undefined;
  title?: string | undefined;
}

/** The colors of the ranks, from the worst to the best. */
export function RankScale({ rank, by, title }: RankScaleProps) {
  const theme = useComputedColorScheme("light");
  const colours = palette(theme).filter((_, i) => i % 9 === 0);
  if (rankedOf(rank) < 2) return null;
  return (
    <span className={classes.scale} title={title}>
      rank {rankedOf(rank)}
      <i style={{ background: `linear-gradient(to right, ${colours.join(",")})` }} aria-hidden />1{by && ` by ${by}`}
    </span>
  );
}
