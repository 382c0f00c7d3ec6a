import { Fragment } from "react";

/** The name of a parameter, which may break after its slashes. */
export function Breakable({ name }: { name: string }) {
  const parts = name.split("/");
  return parts.map((part, i) => (
    <Fragment key={i}>
      {i > 0 && (
        <>
          /<wbr />
        </>
      )}
      {part}
    </Fragment>
  ));
}
