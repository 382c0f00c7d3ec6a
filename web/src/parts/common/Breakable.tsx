import { Fragment, type ReactNode } from "react";

/** The name of a parameter, which may break after its slashes. `end` stays beside its last part. */
export function Breakable({ name, end }: { name: string; end?: ReactNode }) {
  const parts = name.split("/");
  const last = parts.pop();
  return (
    <>
      {parts.map((part, i) => (
        <Fragment key={i}>
          {part}/<wbr />
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
