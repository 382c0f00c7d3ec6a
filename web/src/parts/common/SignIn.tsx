import { Button } from "@mantine/core";
import { notifyManager, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useSyncExternalStore, type ReactNode } from "react";
import { api, ApiError } from "../../api/client";

const SignInForm = lazy(() => import("./SignInForm"));

/** Shows the sign-in form instead of the page once the service has asked for a token. */
export function SignedIn({ children }: { children: ReactNode }) {
  if (!useIsRefused()) return children;
  return (
    <Suspense>
      <SignInForm />
    </Suspense>
  );
}

/** True if a request of the page was refused because nobody is signed in. */
function useIsRefused(): boolean {
  const cache = useQueryClient().getQueryCache();
  return useSyncExternalStore(
    (changed) => cache.subscribe(notifyManager.batchCalls(changed)),
    () => cache.getAll().some((query) => query.state.error instanceof ApiError && query.state.error.status === 401),
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
