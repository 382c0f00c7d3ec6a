import { Button, PasswordInput } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api } from "../../api/client";
import { ROOT } from "../../api/root";
import { useTitle } from "./useTitle";

/** The form in which somebody signs in with a token. */
export default function SignInForm() {
  const client = useQueryClient();
  const [token, setToken] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  useTitle("Sign in");
  const { data: session } = useQuery({ queryKey: ["session"], queryFn: ({ signal }) => api.session(signal) });
  const provider = session?.sign_in_url;
  const here = window.location.pathname.slice(ROOT.length) + window.location.search;
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await api.signIn(token.trim());
      await client.resetQueries(); // the refused requests are sent again by the parts that show the data
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)} style={{ maxWidth: 420, margin: "64px auto" }}>
      <h1 style={{ fontSize: 20, margin: "0 0 8px" }}>Sign in</h1>
      <p style={{ margin: "0 0 16px" }}>
        {provider ? "Sign in with your organization, or with a token." : "This service requires a token."} An admin can
        create {provider ? "a token" : "one"} for you with <code>tuner token create</code>.
      </p>
      {provider && (
        <Button component="a" href={`${provider}?next=${encodeURIComponent(`/${here}`)}`} fullWidth mb="md">
          Sign in with your organization
        </Button>
      )}
      <PasswordInput
        label="Token"
        placeholder="tnr_…"
        autoComplete="current-password"
        autoFocus
        required
        value={token}
        error={error}
        onChange={(event) => setToken(event.currentTarget.value)}
      />
      <Button type="submit" mt="md" loading={busy} disabled={!token.trim()}>
        Sign in
      </Button>
    </form>
  );
}
