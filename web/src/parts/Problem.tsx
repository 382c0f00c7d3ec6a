import { Alert, Button } from "@mantine/core";
import { ApiError } from "../api/client";

/** Why something could not be shown, with a way on. */
export function ProblemBox({ error, what, retry }: { error: unknown; what: string; retry?: () => void }) {
  const api = error instanceof ApiError ? error : null;
  const title = api?.status === 404 ? `There is no such ${what}` : `The ${what} could not be read`;
  return (
    <Alert color="red" variant="light" title={title} role="alert">
      <p style={{ margin: "0 0 8px" }}>{error instanceof Error ? error.message : String(error)}</p>
      {api?.problem?.errors?.map(({ pointer, message }) => <div key={pointer}><code>{pointer}</code>: {message}</div>)}
      {retry && api?.status !== 404 && <Button size="compact-sm" variant="default" onClick={retry}>Try again</Button>}
    </Alert>
  );
}
