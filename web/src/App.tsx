import { ActionIcon, Anchor, Button, Group, useComputedColorScheme, useMantineColorScheme } from "@mantine/core";
import { useQueryClient, type Query } from "@tanstack/react-query";
import { useCallback, useEffect, useRef, useSyncExternalStore, type ReactNode } from "react";
import { Link, NavLink, Outlet, useLocation } from "react-router";
import { ApiError, LOST_MS } from "./api/client";
import { ROOT } from "./api/root";
import classes from "./App.module.css";
import { KeyHelp } from "./parts/common/KeyHelp";
import { Unbroken } from "./pages/NotFoundPage";
import { askNow, useIsWaiting } from "./parts/common/lazily";
import { SignedIn, SignOut } from "./parts/common/SignIn";
import { useHeadingFocus } from "./parts/common/useHeadingFocus";
import { useSession } from "./parts/common/useSession";

export function App() {
  const main = useRef<HTMLElement>(null);
  useHeadingFocus(main);
  // The pages of trials, comparisons and new experiments belong to the link "Experiments", though their URLs do not
  // begin with it.
  const within = /^\/($|(trials|compare|new)\b)/.test(useLocation().pathname);
  return (
    <>
      <a className={classes.skip} href="#main">
        Skip to content
      </a>
      <Top>
        <header className={classes.header}>
          <Link to="/experiments" className={classes.brand}>
            <img src={`${ROOT}favicon.svg`} alt="" width={22} height={22} /> Tuner
          </Link>
          <nav className={classes.nav} aria-label="Main">
            <NavLink to="/experiments" data-within={within}>
              Experiments
            </NavLink>
            <ClusterLink />
            <NavLink to="/settings">Settings</NavLink>
            <a href={`${ROOT}openapi.json`}>API</a>
          </nav>
          <SessionButton />
          <SchemeButton />
        </header>
        <DownBanner />
      </Top>
      <KeyHelp />
      <main ref={main} id="main" className={classes.main}>
        <Unbroken>
          <SignedIn>
            <Outlet />
          </SignedIn>
        </Unbroken>
      </main>
    </>
  );
}

/** The link to the cluster's page, except for somebody whose access is limited to a project: the service shows them no cluster. */
function ClusterLink() {
  const limited = useSession()?.project != null;
  return limited ? null : <NavLink to="/cluster">Cluster</NavLink>;
}

/** Show who is signed in. Show nothing if the service requires no token. */
function SessionButton() {
  const session = useSession();
  return session?.required && session.name ? <SignOut name={session.name} /> : null;
}

/** The height of the bar in a window in which it takes one line, as in App.module.css. */
const TOP = 44;

/** The bar that stays at the top of the window. Other fixed parts, such as an open trial, start below it. */
function Top({ children }: { children: ReactNode }) {
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // The observer is told the height when the browser has computed it. To ask for it here would make the browser lay out the page
    // once more, and each new value makes it compute the style of every element again.
    let known = TOP;
    const observer = new ResizeObserver(([top]) => {
      const height = Math.round(top!.borderBoxSize[0]!.blockSize);
      if (height === known) return;
      known = height;
      document.documentElement.style.setProperty("--app-top", `${height}px`);
    });
    observer.observe(ref.current!);
    return () => {
      observer.disconnect();
      if (known !== TOP) document.documentElement.style.removeProperty("--app-top");
    };
  }, []);
  return (
    <div ref={ref} className={classes.top}>
      {children}
    </div>
  );
}

function SchemeButton() {
  const { setColorScheme } = useMantineColorScheme();
  const now = useComputedColorScheme("light");
  const next = now === "dark" ? "light" : "dark";
  return (
    <ActionIcon
      variant="subtle"
      color="gray"
      onClick={() => setColorScheme(next)}
      title={`Switch to ${next}`}
      aria-label={`Switch to ${next} colors`}
    >
      <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden>
        <circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" strokeWidth="1.4" />
        <path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" />
      </svg>
    </ActionIcon>
  );
}

const RETRY_MS = 3000;

/** The notice shown while the service is not responding. It retries automatically, and at once on request. */
function DownBanner() {
  const client = useQueryClient();
  const cache = client.getQueryCache();
  const waits = useIsWaiting();
  const down = useSyncExternalStore(
    (changed) => cache.subscribe(changed),
    // Look at every query, not only until one has no answer: `hasNoAnswer` notes errors that may be gone at the next look.
    () => cache.getAll().filter(hasNoAnswer).length > 0,
  );
  const retry = useCallback(
    (cancelRefetch: boolean) =>
      client.refetchQueries({ type: "active", predicate: (query) => isDown(query.state.error) }, { cancelRefetch }),
    [client],
  );
  useEffect(() => {
    if (!down) return;
    // A service that is slow, as after a restart, gets the time to answer. A connection that was cut on the way gives no answer.
    let ticks = 0;
    const timer = setInterval(() => {
      ticks += 1;
      void retry(ticks % Math.ceil(LOST_MS / RETRY_MS) === 0);
    }, RETRY_MS);
    return () => clearInterval(timer);
  }, [down, retry]);
  // What was on its way when the service went down may wait for an answer on a connection that was cut.
  const wasDown = useRef(false);
  useEffect(() => {
    if (wasDown.current && !down) {
      const lost = new Set(cache.findAll({ type: "active", fetchStatus: "fetching" }));
      const these = { predicate: (query: Query) => lost.has(query) };
      void client.cancelQueries(these).then(() => client.refetchQueries(these));
    }
    wasDown.current = down;
  }, [client, cache, down]);
  const refused = useSyncExternalStore(
    (changed) => cache.subscribe(changed),
    () => cache.getAll().map(refusal).find(Boolean),
  );
  const partial = useSyncExternalStore(
    (changed) => cache.subscribe(changed),
    () => partOf(cache.getAll()),
  );
  if (!down && !waits && refused === undefined) return null;
  if (partial !== undefined && !waits)
    return (
      <div role="alert" className={classes.down}>
        <b>A part of this page may be out of date.</b> The service sends no newer data for it: {partial}
      </div>
    );
  if (!down && !waits)
    return (
      <div role="alert" className={classes.down}>
        <b>This page may be out of date.</b> The service sends no newer data: {refused}
      </div>
    );
  return (
    <div role="alert" className={classes.down}>
      <Group justify="space-between" gap="sm" wrap="nowrap">
        <span>
          <b>The service is not responding.</b>
          {waits && " What you have opened is shown as soon as it responds."} This page may be out of date; running
          trials are not affected. Is <code>tuner serve</code> running?
        </span>
        <Button
          size="compact-sm"
          variant="white"
          color="red"
          flex="none"
          onClick={() => {
            askNow();
            void retry(true);
          }}
        >
          Try again
        </Button>
      </Group>
    </div>
  );
}

/** The queries on the page whose last request found the service down. */
const unanswered = new WeakSet<Query>();

/**
 * Return true if the last request of a query on the page found the service down. A query may forget its error when it asks
 * again, so it counts as unanswered until that request ends. Otherwise the service would seem to respond with each new
 * request, and `DownBanner` would repeat the request at once, over and over.
 */
function hasNoAnswer(query: Query): boolean {
  const { error, fetchFailureReason, fetchStatus } = query.state;
  const cause = error ?? fetchFailureReason;
  const asks = cause === null && fetchStatus === "fetching";
  const counts = query.isActive() && query.meta?.["needsDriver"] !== true;
  if (counts && isDown(cause)) unanswered.add(query);
  else if (!counts || !asks) unanswered.delete(query);
  return unanswered.has(query);
}

/** When each query that gets no newer data was noticed, and when it failed again although the service had answered others. */
const failing = new WeakMap<Query, { since: number; alone: number }>();

/**
 * Return why a part of the page gets no newer data, if the service has answered other requests since then; undefined if all is
 * well or if it answers none. A service that comes back answers some requests before others, so a request without an answer has
 * to fail once more.
 */
function partOf(queries: readonly Query[]): string | undefined {
  const failed = queries.filter((query) => {
    const fails = unanswered.has(query) || refusal(query) !== undefined;
    if (!fails) failing.delete(query);
    else if (!failing.has(query)) failing.set(query, { since: Date.now(), alone: 0 });
    return fails;
  });
  const last = Math.max(...failed.map((query) => failing.get(query)!.since));
  const answeredBy = (time: number) =>
    queries.some((one) => {
      const at = one.state.dataUpdatedAt;
      return one.isActive() && !failed.includes(one) && at > last && at <= time;
    });
  const alone = failed.every((query) => {
    if (!unanswered.has(query)) return answeredBy(Infinity);
    const found = failing.get(query)!;
    if (answeredBy(query.state.errorUpdatedAt)) found.alone = query.state.errorUpdatedAt;
    return found.alone > last;
  });
  return alone
    ? failed.map(({ state }) => (state.error ?? state.fetchFailureReason)?.message).find(Boolean)
    : undefined;
}

/** Return why the service sends no newer data for what a query shows, such as an error of its database; undefined if it does. */
function refusal(query: Query): string | undefined {
  const { data, error } = query.state;
  if (data === undefined || !(error instanceof ApiError) || error.unreachable) return undefined;
  if (!query.isActive() || query.meta?.["needsDriver"] === true) return undefined;
  return error.status === 403 || error.status === 429 || error.status >= 500 ? error.message : undefined;
}

function isDown(error: unknown): boolean {
  return error instanceof ApiError && error.unreachable;
}

export function Crumbs({ items }: { items: { label: string; to?: string }[] }) {
  return (
    <nav aria-label="Breadcrumb" className={classes.crumbs}>
      {items.map(({ label, to }, i) => (
        <span key={i}>
          {to ? (
            <Anchor component={Link} to={to} size="xs">
              {label}
            </Anchor>
          ) : (
            label
          )}
          {i < items.length - 1 && <i aria-hidden>/</i>}
        </span>
      ))}
    </nav>
  );
}
