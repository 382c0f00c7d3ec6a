import { Anchor } from "@mantine/core";
import { Component, type ReactNode } from "react";
import { Link, useLocation } from "react-router";
import { useTitle } from "../parts/common/useTitle";

/** An address that leads nowhere, or a page that broke. */
export function NotFoundPage({ error }: { error?: unknown }) {
  useTitle("Not found");
  const broken = error != null;
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

/** Shows the error in place of a page that broke, until another page is opened. */
export function Unbroken({ children }: { children: ReactNode }) {
  return <Boundary key={useLocation().pathname}>{children}</Boundary>;
}

class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override render() {
    return this.state.error == null ? this.props.children : <NotFoundPage error={this.state.error} />;
  }
}
