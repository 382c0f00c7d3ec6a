import { Anchor } from "@mantine/core";
import { isRouteErrorResponse, Link, useRouteError } from "react-router";
import { useTitle } from "../parts/useTitle";

/** An address that leads nowhere, or a page that broke. */
export function NotFoundPage() {
  const error = useRouteError();
  useTitle("Not found");
  const broken = error != null && !isRouteErrorResponse(error);
  return (
    <section style={{ maxWidth: 640, margin: "48px auto", padding: "0 16px" }}>
      <h1 style={{ fontSize: 20 }}>{broken ? "This page broke" : "There is no such page"}</h1>
      {broken && (
        <pre style={{ whiteSpace: "pre-wrap" }}>{error instanceof Error ? error.message : JSON.stringify(error)}</pre>
      )}
      <p>
        <Anchor component={Link} to="/experiments">
          All experiments
        </Anchor>
      </p>
    </section>
  );
}
