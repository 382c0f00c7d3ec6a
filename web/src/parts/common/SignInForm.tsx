import { Button, PasswordInput } from "@mantine/core";
import { useQuery, useQueryClient, type QueryClient } from "@tanstack/react-query";
import { useEffect, useEffectEvent, useState, type FormEvent } from "react";
import { api } from "../../api/client";
import { ROOT } from "../../api/root";
import { FocusBack } from "./FocusBack";
import { identity } from "./identity";
import { tellOtherTabs } from "./otherTabs";
import { useTitle } from "./useTitle";

interface SignInFormProps {
  /** The identity of whoever was signed in last; null if nobody was. */
  last: string | null;
  /** Called if somebody else signs in. */
  onOther: () => void;
}

/** The form in which somebody signs in with a token. */
export default function SignInForm({ last, onOther }: SignInFormProps) {
  const client = useQueryClient();
  const [token, setToken] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  useTitle("Sign in");
  const asked = useQuery({
    queryKey: ["session"],
    queryFn: ({ signal }) => api.session(signal),
    refetchOnMount: "always",
    refetchOnWindowFocus: "always",
  });
  const session = asked.data;
  const provider = session?.sign_in_url;
  const here = window.location.pathname.slice(ROOT.length) + window.location.search;
  const enter = async (found: Parameters<typeof identity>[0]) => {
    if (last !== null && identity(found) !== last) {
      onOther();
      await client.resetQueries();
    } else await readAgain(client);
  };
  // Somebody may sign in in another tab of the browser, even before this form is there. At first, the cache may still have the session
  // that has ended, so an answer counts only if it came later.
  const enterLatest = useEffectEvent(enter);
  const signedIn = asked.isSuccess && asked.isFetchedAfterMount && asked.data.name !== null ? asked.data : null;
  useEffect(() => {
    if (signedIn) void enterLatest(signedIn);
  }, [signedIn]);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const found = await api.signIn(token.trim());
      tellOtherTabs();
      await enter(found);
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)} style={{ maxWidth: 420, margin: "64px auto" }}>
      {/* The page that the form hid is shown as it was, so the focus is where it was, too. */}
      <FocusBack />
      <h1 style={{ fontSize: 20, margin: "0 0 8px" }}>Sign in</h1>
      <p style={{ margin: "0 0 16px" }}>
        {provider ? "Sign in with your organization, or with a token." : "This service requires a token."} An admin can
        create {provider ? "a token" : "one"} for you with <code>tuner token create</code>.
      </p>
      {provider && (
        // A page that is hidden behind the form would lose what was typed if this tab left it.
        <Button
          component="a"
          href={`${provider}?next=${encodeURIComponent(`/${here}`)}`}
          {...(last === null ? {} : { target: "_blank" })}
          fullWidth
          mb="md"
        >
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

/** Let the page read everything again. Keep the answers until then, since a page without them would drop its open forms. */
function readAgain(client: QueryClient): Promise<void> {
  for (const query of client.getQueryCache().getAll()) {
    if (query.state.error === null) continue;
    if (query.state.data === undefined) query.reset();
    else query.setState({ error: null, status: "success" });
  }
  return client.invalidateQueries();
}
