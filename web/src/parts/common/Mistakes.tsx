import { Alert } from "@mantine/core";
import { ApiError } from "../../api/client";
import { fieldName } from "../../format";
import classes from "./Mistakes.module.css";

/** Show each mistake in the data that was sent, with the field that has it. */
export function Mistakes({ error, title }: { error: unknown; title: string }) {
  const found = error instanceof ApiError ? (error.problem?.errors ?? []) : [];
  return (
    <Alert color="red" variant="light" title={title} role="alert">
      {found.length === 0 && <p className={classes.text}>{error instanceof Error ? error.message : String(error)}</p>}
      {found.length > 0 && (
        <ul className={classes.list}>
          {found.map(({ pointer, message }) => (
            <li key={pointer + message}>
              <code>{fieldName(pointer) || "the whole"}</code>: {message}
            </li>
          ))}
        </ul>
      )}
    </Alert>
  );
}
