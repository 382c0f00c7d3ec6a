import type { StreamState } from "../../live/stream";
import classes from "./parts.module.css";

const WORDS: Record<StreamState, [string, string]> = {
  connecting: ["connecting", "wait"],
  live: ["live", "good"],
  reconnecting: ["reconnecting…", "held"],
  hidden: ["live when visible", "quiet"],
};

/** Shows whether the page is being kept up to date. */
export function LiveMark({ state }: { state: StreamState }) {
  const [word, tone] = WORDS[state];
  return (
    <span className={classes.state} data-tone={tone} role="status" style={{ fontSize: 12 }}>
      {word}
    </span>
  );
}
