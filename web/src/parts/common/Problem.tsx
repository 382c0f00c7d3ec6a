import { Alert, Anchor, Button } from "@mantine/core";
import { Link } from "react-router";
import { ApiError, isMissing } from "../../api/client";

interface MissingPageProps {
  error: unknown;
  what: string;
  /** The name of what the page has shown until somebody deleted it. */
  shown?: string | undefined;
  retry: () => void;
}

/** A page whose subject could not be read: what is wrong, and a link back. */
export function MissingPage({ error, what, shown, retry }: MissingPageProps) {
  const missing = isMissing(error);
  const deleted = missing && shown !== undefined;
  return (
    <section style={{ maxWidth: 640, margin: "32px auto" }} role={deleted ? "alert" : undefined}>
      <h1 style={{ fontSize: 20, margin: "0 0 12px", overflowWrap: "anywhere" }}>
        {deleted ? `${shown} was deleted` : missing ? `There is no such ${what}` : `The ${what} could not be read`}
      </h1>
      {deleted ? (
        <p>Somebody deleted this {what} while the page was open.</p>
      ) : missing ? (
        <p>{error.message}</p>
      ) : (
        <ProblemBox error={error} what={what} retry={retry} />
      )}
      <p>
        <Anchor component={Link} to="/experiments">
          All experiments
        </Anchor>
      </p>
    </section>
  );
}

interface ProblemBoxProps {
  error: unknown;
  what: string;
  /** The name of what the page has shown until somebody deleted it. */
  shown?: string | undefined;
  retry?: () => void;
  /** Continue without what is missing, such as a trial that was deleted. */
  leaveOut?: () => void;
}

/** Say why something could not be shown, and offer to try again. */
export function ProblemBox({ error, what, shown, retry, leaveOut }: ProblemBoxProps) {
  const api = error instanceof ApiError ? error : null;
  const missing = shown === undefined ? `There is no such ${what}` : `${shown} was deleted`;
  const title = api?.status === 404 ? missing : `The ${what} could not be read`;
  return (
    <Alert color="red" variant="light" title={title} role="alert">
      <p style={{ margin: "0 0 8px" }}>{error instanceof Error ? error.message : String(error)}</p>
      {api?.problem?.errors?.map(({ pointer, message }) => (
        <div key={pointer}>
          <code>{pointer}</code>: {message}
        </div>
      ))}
      {retry && api?.status !== 404 && (
        <Button size="compact-sm" variant="default" onClick={retry}>
          Try again
        </Button>
      )}
      {leaveOut && api?.status === 404 && (
        <Button size="compact-sm" variant="default" onClick={leaveOut}>
          Leave it out
        </Button>
      )}
    </Alert>
  );
}
