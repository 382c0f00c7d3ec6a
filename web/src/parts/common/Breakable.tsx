import { Fragment, type ReactNode } from "react";

const SLASHES = /(?<=\/)/;
const WORDS = /(?<=[/_.-])/;

interface BreakableProps {
  name: string;
  /** Stays beside the last part. */
  end?: ReactNode;
  /** The name may break between its words, too, such as those of weight_decay. */
  words?: boolean;
}

/** The name of a parameter or a metric, which may break after its slashes. */
export function Breakable({ name, end, words = false }: BreakableProps) {
  const parts = name.split(words ? WORDS : SLASHES);
  const last = parts.pop();
  return (
    <>
      {parts.map((part, i) => (
        <Fragment key={i}>
          {part}
          <wbr />
        </Fragment>
      ))}
      {end === undefined ? (
        last
      ) : (
        <span style={{ whiteSpace: "nowrap" }}>
          {last}
          {end}
        </span>
      )}
    </>
  );
}
