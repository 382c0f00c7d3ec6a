import classes from "./parts.module.css";

/** Takes the place of something that is being loaded, and says what it is. */
export function Loading({ what, height }: { what: string; height: number }) {
  return (
    <div className={classes.loading} style={{ height }} role="status">
      Loading {what}…
    </div>
  );
}
