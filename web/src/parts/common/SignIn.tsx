import { Button } from "@mantine/core";
import { notifyManager, QueryObserver, useQuery, useQueryClient } from "@tanstack/react-query";
import {
  Activity,
  Fragment,
  Suspense,
  useEffect,
  useEffectEvent,
  useState,
  useSyncExternalStore,
  type ReactNode,
} from "react";
import { useLocation } from "react-router";
import { api, ApiError } from "../../api/client";
import { keys } from "../../live/keys";
import { lazily } from "./lazily";
import { identity, type Session } from "./identity";
import { onOtherTabs, tellOtherTabs } from "./otherTabs";
import { useSession } from "./useSession";

const SignInForm = lazily(() => import("./SignInForm"));

/** The cache key of the time at which somebody signed out. The page is dropped then, with all that was typed. */
const LEFT = ["left"];
/** The number of letters of a name that fit on a phone, beside the words "sign out". */
const MOST_LETTERS = 20;

/**
 * Show the sign-in form instead of the page once the service has asked for a token. The page is hidden meanwhile, and its polls
 * and keys rest. It keeps what has been typed, unless somebody else signs in.
 */
export function SignedIn({ children }: { children: ReactNode }) {
  const refused = useIsRefused();
  useRefusedActions();
  useKept(refused);
  useDraftQuestion();
  const session = useSession();
  const who = session?.name ? identity(session) : null;
  const [last, setLast] = useState<string | null>(null);
  // While the form is shown, it compares whoever signs in, also in another tab, with whoever was signed in before.
  if (!refused && who !== null && who !== last) setLast(who);
  const [visit, setVisit] = useState(0);
  useOtherTabs(refused, last, () => setVisit((count) => count + 1));
  const { data: left } = useQuery({ queryKey: LEFT, queryFn: () => 0, enabled: false, initialData: 0 });
  return (
    <>
      <Activity mode={refused ? "hidden" : "visible"}>
        <Fragment key={`${visit} ${left}`}>{children}</Fragment>
      </Activity>
      {refused && (
        <Suspense>
          <SignInForm last={last} onOther={() => setVisit((count) => count + 1)} />
        </Suspense>
      )}
    </>
  );
}

/**
 * Follow whoever signs in or out in another tab, whose session this tab shares. Otherwise a page that asks for nothing by itself would
 * go on under the name of somebody who has left, and a form to sign in would stay although somebody has done so.
 */
function useOtherTabs(refused: boolean, last: string | null, onOther: () => void): void {
  const client = useQueryClient();
  const follow = useEffectEvent(async () => {
    await client.refetchQueries({ queryKey: ["session"] });
    const session = client.getQueryData<Session>(["session"]);
    if (refused || session === undefined) return; // the form to sign in goes on by itself
    if (session.name === null) return client.invalidateQueries();
    if (last === null || identity(session) === last) return;
    onOther();
    await client.resetQueries();
  });
  useEffect(() => onOtherTabs(() => void follow()), []);
}

/** Keep the answers of the hidden page. The cache would drop them after some minutes, and with them the open forms. */
function useKept(hidden: boolean): void {
  const client = useQueryClient();
  useEffect(() => {
    if (!hidden) return;
    const queries = client.getQueryCache().getAll();
    const ends = queries.map(({ queryKey, options }) =>
      new QueryObserver(client, { ...options, queryKey, enabled: false }).subscribe(() => {}),
    );
    return () => ends.forEach((end) => end());
  }, [client, hidden]);
}

/** Let the browser ask before the page is left with what was typed on it, also while the sign-in form hides it. */
function useDraftQuestion(): void {
  const client = useQueryClient();
  const entry = useLocation().key;
  useEffect(() => {
    const ask = (event: BeforeUnloadEvent) => {
      if (client.getQueryData(keys.draft(entry)) !== undefined) event.preventDefault();
    };
    window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [client, entry]);
}

/** True if the page could not read something because nobody is signed in. */
function useIsRefused(): boolean {
  const cache = useQueryClient().getQueryCache();
  return useSyncExternalStore(
    (changed) => cache.subscribe(notifyManager.batchCalls(changed)),
    () => cache.getAll().some((query) => isUnsigned(query.state.error)),
  );
}

/** Let the page read everything again once an action was refused because nobody is signed in: a page may ask for nothing by itself. */
function useRefusedActions(): void {
  const client = useQueryClient();
  useEffect(
    () =>
      client.getMutationCache().subscribe((event) => {
        if (event.type !== "updated" || event.action.type !== "error") return;
        if (isUnsigned(event.action.error)) void client.invalidateQueries();
      }),
    [client],
  );
}

function isUnsigned(error: unknown): boolean {
  return error instanceof ApiError && error.status === 401;
}

/** Show who is signed in, and a button to sign out. Show nothing if the service does not ask for a token. */
export function SignOut({ name }: { name: string }) {
  const client = useQueryClient();
  const [failed, setFailed] = useState(false);
  const leave = async () => {
    try {
      await api.signOut();
    } catch {
      return setFailed(true);
    }
    setFailed(false);
    tellOtherTabs();
    await client.resetQueries();
    client.setQueryData(LEFT, Date.now());
  };
  return (
    <>
      {failed && <span role="alert">You are still signed in.</span>}
      <Button
        size="compact-sm"
        variant="subtle"
        color="gray"
        title={name}
        onClick={() => void leave()}
        aria-label={`Sign out ${name}`}
      >
        {name.length > MOST_LETTERS ? `${name.slice(0, MOST_LETTERS - 1)}…` : name} · sign out
      </Button>
    </>
  );
}
