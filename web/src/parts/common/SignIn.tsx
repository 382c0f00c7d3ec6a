import { Button, PasswordInput } from "@mantine/core";
import { notifyManager, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, useSyncExternalStore, type FormEvent, type ReactNode } from "react";
import { api, ApiError } from "../../api/client";
import { ROOT } from "../../api/root";
import { useTitle } from "./useTitle";

/** Shows the sign-in form instead of the page once the service has asked for a token. */
export function SignedIn({ children }: { children: ReactNode }) {
  return useIsRefused() ? <SignIn /> : children;
}

/** True if a request of the page was refused because nobody is signed in. */
function useIsRefused(): boolean {
  const cache = useQueryClient().getQueryCache();
  return useSyncExternalStore(
    (changed) => cache.subscribe(notifyManager.batchCalls(changed)),
    () => cache.getAll().some((query) => query.state.error instanceof ApiError && query.state.error.status === 401),
  );
}

function SignIn() {
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
      await client.resetQueries(); // what was refused is asked for again, by whoever shows it
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
        This service requires a token. An admin can create one for you with <code>tuner token create</code>.
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

/** Show who is signed in, and a button to sign out. Show nothing if the service does not ask for a token. */
export function SignOut({ name }: { name: string }) {
  const client = useQueryClient();
  const leave = async () => {
    await api.signOut();
    await client.resetQueries();
  };
  return (
    <Button
      size="compact-sm"
      variant="subtle"
      color="gray"
      onClick={() => void leave()}
      aria-label={`Sign out ${name}`}
    >
      {name} · sign out
    </Button>
  );
}
