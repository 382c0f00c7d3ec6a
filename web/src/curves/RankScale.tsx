import { useComputedColorScheme } from "@mantine/core";
import { palette, rankedOf } from "./colours";
import classes from "./curves.module.css";

/** The colors of the ranks, from the worst to the best. */
export function RankScale({ rank }: { rank: ReadonlyMap<number, number> }) {
  const theme = useComputedColorScheme("light");
  const colours = palette(theme).filter((_, i) => i % 9 === 0);
  if (rankedOf(rank) < 2) return null;
  return (
    <span className={classes.scale}>
      rank {rankedOf(rank)}
      <i style={{ background: `linear-gradient(to right, ${colours.join(",")})` }} aria-hidden />1
    </span>
  );
}
