import { Alert, Anchor, Button, Skeleton, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { api, isForbidden, type NewToken } from "../api/client";
import { moment } from "../format";
import { Mistakes } from "../parts/common/Mistakes";
import { settingsCall } from "../charts/copies";
import { CopyMenu } from "../parts/common/CopyMenu";
import { NumberField } from "../parts/common/NumberField";
import { Panel } from "../parts/common/Panel";
import { ProblemBox } from "../parts/common/Problem";
import { Select } from "../parts/common/Select";
import { Snippet } from "../parts/experiments/FirstExperiment";
import { useFirstPress } from "../parts/common/useFirstPress";
import { useSession } from "../parts/common/useSession";
import { useTitle } from "../parts/common/useTitle";
import { changesAmong, MOST_CHANGES, outcome, pageOf, said } from "./audit";
import classes from "./SettingsPage.module.css";
import { ProjectInput, Projects, REFRESH_MS } from "./Projects";
import { Webhooks } from "./Webhooks";

const ROLES = [
  { value: "agent", label: "agent: runs trials, and reads nothing" },
  { value: "viewer", label: "viewer: reads everything but secrets" },
  { value: "editor", label: "editor: also creates and changes experiments" },
  { value: "admin", label: "admin: also manages tokens" },
];

/** The settings: tokens, projects, webhooks and the audit trail. */
export default function SettingsPage() {
  useTitle("Settings");
  const tokens = useQuery({
    queryKey: ["tokens"],
    queryFn: ({ signal }) => api.tokens(signal),
    refetchInterval: ({ state }) => (isForbidden(state.error) ? false : REFRESH_MS),
  });
  const session = useSession();
  const refused = isForbidden(tokens.error);
  return (
    <div className={classes.page}>
      <h1 className={classes.title}>Settings</h1>
      {session && !session.required && (
        <p className={classes.words}>
          This service requires no token, because only this machine can reach it. To require tokens, start it with{" "}
          <code style={{ whiteSpace: "nowrap" }}>tuner serve --auth</code> or on another address.
        </p>
      )}
      {refused && (
        <Alert color="gray" variant="light" title="For admins">
          Only admins can see the tokens and the audit trail. You are signed in as {session?.name ?? "somebody"} with
          the role {session?.role ?? "viewer"}
          {session?.project && ` in the project ${session.project}`}.
        </Alert>
      )}
      {tokens.isError && !refused && !tokens.data && (
        <ProblemBox error={tokens.error} what="list of tokens" retry={() => void tokens.refetch()} />
      )}
      {tokens.isLoading && <Skeleton height={160} />}
      {tokens.data && (
        <>
          <Panel
            flush
            title={`Tokens · ${tokens.data.items.length}`}
            aside={<CopyMenu call={settingsCall("tokens")} />}
          >
            {tokens.data.items.length === 0 ? (
              <p className={classes.none}>No tokens yet. Create one for each person and each script.</p>
            ) : (
              <div className={`${classes.scroll} sideways`} tabIndex={0} role="region" aria-label="Tokens">
                <table className={classes.table} aria-label="Tokens">
                  <thead>
                    <tr>
                      <th scope="col">Name</th>
                      <th scope="col">Role</th>
                      <th scope="col">Project</th>
                      <th scope="col">Created</th>
                      <th scope="col">Last used</th>
                      <th scope="col">Expires</th>
                      <th scope="col">
                        <span className={classes.hidden}>Revoke</span>
                      </th>
                    </tr>
                  </thead>
                  <tbody>
                    {tokens.data.items.map((token) => (
                      <tr key={token.id}>
                        <td>{token.name}</td>
                        <td>{token.role}</td>
                        <td>{token.project ?? "all"}</td>
                        <td>{moment(token.created_at)}</td>
                        <td>{token.used_at ? moment(token.used_at) : "never"}</td>
                        <td>{token.expires_at ? moment(token.expires_at) : "never"}</td>
                        <td>
                          {token.revoked_at ? (
                            <span>revoked {moment(token.revoked_at)}</span>
                          ) : (
                            <Revoke id={token.id} name={token.name} />
                          )}
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            )}
          </Panel>
          <Create only={session?.project ?? null} />
        </>
      )}
      {!tokens.isLoading && <Projects mayChange={mayChange(session?.role)} />}
      {!tokens.isLoading && <Webhooks all={session?.role === "admin"} only={session?.project ?? null} />}
      {tokens.data && <Audit />}
    </div>
  );
}

function mayChange(role: string | null | undefined): boolean {
  return role === "editor" || role === "admin";
}

/** The form for a new token. `only`: the project to which the user is limited; null for all projects. */
export function Create({ only }: { only: string | null }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [role, setRole] = useState<NewToken["role"]>("editor");
  const [project, setProject] = useState("");
  const [days, setDays] = useState<number | "">(90);
  const create = useMutation({
    mutationFn: () =>
      api.createToken({
        name: name.trim(),
        role,
        project: project.trim() || null,
        expires_days: days === "" ? null : days,
      }),
    onSuccess: () => {
      setName("");
      void client.invalidateQueries({ queryKey: ["tokens"] });
      void client.invalidateQueries({ queryKey: ["audit"] });
    },
  });
  const send = useFirstPress(create.isPending, create.mutate);
  return (
    <Panel title="New token">
      <form
        className={classes.form}
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <TextInput
          label="Name"
          w={300}
          placeholder="the person or program that uses it"
          required
          value={name}
          onChange={(event) => setName(event.currentTarget.value)}
        />
        <Select
          label="Role"
          allowDeselect={false}
          w={370}
          data={ROLES}
          value={role}
          onChange={(value) => setRole((value ?? "editor") as NewToken["role"])}
        />
        <ProjectInput only={only} value={project} onChange={setProject} />
        <NumberField
          label="Expires after, in days"
          w={180}
          placeholder="never"
          min={0}
          allowNegative={false}
          error={days === 0 && "Leave this empty for a token that never expires."}
          value={days}
          onChange={setDays}
        />
        <Button type="submit" loading={create.isPending} disabled={!name.trim() || days === 0}>
          Create
        </Button>
      </form>
      {create.isError && <Mistakes error={create.error} title="It could not be created" />}
      {create.data?.secret && (
        <div role="status">
          <p className={classes.words}>
            The token of <b>{create.data.name}</b>. Copy it now: it cannot be shown again.
          </p>
          <Snippet text={create.data.secret} />
        </div>
      )}
    </Panel>
  );
}

function Revoke({ id, name }: { id: string; name: string }) {
  const client = useQueryClient();
  const [sure, setSure] = useState(false);
  const revoke = useMutation({
    mutationFn: () => api.revokeToken(id),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["tokens"] });
      void client.invalidateQueries({ queryKey: ["audit"] });
    },
  });
  if (!sure)
    return (
      <Button size="compact-xs" variant="default" aria-label={`Revoke ${name}`} onClick={() => setSure(true)}>
        Revoke
      </Button>
    );
  return (
    <span className={classes.sure}>
      <Button size="compact-xs" color="red" loading={revoke.isPending} onClick={() => revoke.mutate()}>
        Revoke {name} permanently
      </Button>
      <Button size="compact-xs" variant="default" onClick={() => setSure(false)}>
        Keep it
      </Button>
      {revoke.isError && <span role="alert">{revoke.error.message}</span>}
    </span>
  );
}

/** The number of further pages of the audit trail in which changes are looked for. */
const MOST_PAGES = 10;

/** Read the latest changes. Hundreds of checks of a spec may come after them, which do not count. */
async function latestChanges(signal: AbortSignal) {
  let page = await api.audit(signal);
  let found = changesAmong(page.items);
  for (let more = 0; more < MOST_PAGES && found.length < MOST_CHANGES && page.next_page_token; more++) {
    page = await api.audit(signal, page.next_page_token);
    found = changesAmong([...found, ...page.items]);
  }
  return found;
}

function Audit() {
  const audit = useQuery({
    queryKey: ["audit"],
    queryFn: ({ signal }) => latestChanges(signal),
    refetchInterval: REFRESH_MS,
  });
  if (audit.isError && !audit.data)
    return <ProblemBox error={audit.error} what="audit trail" retry={() => void audit.refetch()} />;
  if (!audit.data) return <Skeleton height={120} />;
  const changes = audit.data;
  return (
    <Panel flush title="Latest changes" aside={<CopyMenu call={settingsCall("audit")} />}>
      {changes.length === 0 ? (
        <p className={classes.none}>No changes yet.</p>
      ) : (
        <div className={`${classes.scroll} sideways`} tabIndex={0} role="region" aria-label="Latest changes">
          <table className={classes.table} aria-label="Latest changes">
            <thead>
              <tr>
                <th scope="col">When</th>
                <th scope="col">Who</th>
                <th scope="col">What</th>
                <th scope="col">Result</th>
                <th scope="col">From</th>
              </tr>
            </thead>
            <tbody>
              {changes.map((entry) => {
                const { words, subject, made } = said(entry.method, entry.path, entry.created);
                const end = outcome(entry.status);
                return (
                  <tr key={entry.id} title={`${entry.method} ${entry.path}: ${entry.status}`}>
                    <td>{moment(entry.time)}</td>
                    <td>{entry.actor}</td>
                    <td>
                      {!end.good && "not done: "}
                      {words} {subject && <Subject id={subject} />}
                      {made && (
                        <>
                          {" "}
                          as <Subject id={made} />
                        </>
                      )}
                    </td>
                    <td data-bad={!end.good}>{end.words}</td>
                    <td>{entry.address}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

function Subject({ id }: { id: string }) {
  const page = pageOf(id);
  if (page === null) return <code>{id}</code>;
  return (
    <Anchor component={Link} to={page} size="sm">
      {id}
    </Anchor>
  );
}
