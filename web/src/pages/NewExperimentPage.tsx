import { Alert, Anchor, Autocomplete, Button, Skeleton, Textarea, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { Link, useLocation, useNavigate, useSearchParams } from "react-router";
import { stringify } from "yaml";
import { api, ApiError } from "../api/client";
import type { Experiment, SpecCopy } from "../api/types";
import { Crumbs } from "../App";
import { createCall } from "../charts/copies";
import { config, fieldName, readable, trained } from "../format";
import { keys } from "../live/keys";
import { limitOf } from "../parts/actions/edit";
import { Select } from "../parts/common/Select";
import { readMapping } from "../parts/common/mapping";
import { Loading } from "../parts/common/Loading";
import { Mistakes } from "../parts/common/Mistakes";
import { NumberField } from "../parts/common/NumberField";
import { Facts, Panel } from "../parts/common/Panel";
import { MissingPage } from "../parts/common/Problem";
import { CopyMenu } from "../parts/common/CopyMenu";
import { useRequestKey } from "../parts/common/useRequestKey";
import { useMayChange, useSession } from "../parts/common/useSession";
import { useTitle } from "../parts/common/useTitle";
import classes from "./NewExperimentPage.module.css";
import { bundleOf } from "./held";
import { askedWords, costWords, reachWords, roomWords, workersOf } from "./room";
import { SpaceFields } from "./SpaceFields";
import { EXAMPLE, inReadingOrder, newSeed, numberOf, repeatsOf, textOf, withField, withName, type Spec } from "./spec";

const SAMPLES = 8;
const SCHEDULERS = ["auto", "asha", "hyperband", "median", "pbt", "fifo", "freeze_thaw"];

const read = (text: string) => readMapping(text, "name: digits");

/** A new experiment, as a form and as YAML; with `?clone=exp_…` it begins with the spec of another one. */
export default function NewExperimentPage() {
  useTitle("New experiment");
  const mayChange = useMayChange();
  const [search] = useSearchParams();
  const from = search.get("clone");
  const source = useQuery({
    queryKey: keys.experiment(from ?? ""),
    queryFn: ({ signal }) => api.experiment(from!, signal),
    enabled: from !== null,
  });
  const copy = useQuery({
    queryKey: [...keys.experiment(from ?? ""), "spec"],
    queryFn: ({ signal }) => api.spec(from!, signal),
    enabled: from !== null,
    gcTime: 0, // the editor begins with the spec as it is now, not with an earlier answer
    retry: false,
  });
  if (from === null) return mayChange ? <Editor first={EXAMPLE} /> : <NotAllowed />;
  if (source.data && copy.data)
    return <Editor key={from} first={inReadingOrder(copy.data.spec)} of={{ ...source.data, ...copy.data }} />;
  if (source.isError) return <MissingPage error={source.error} what="experiment" retry={() => void source.refetch()} />;
  if (copy.isError) return <MissingPage error={copy.error} what="spec" retry={() => void copy.refetch()} />;
  return <Skeleton height={480} />;
}

/** Say that the role does not allow new experiments. */
function NotAllowed() {
  const session = useSession();
  return (
    <div className={classes.page}>
      <h1 className={classes.title}>New experiment</h1>
      <Alert color="gray" variant="light" title="For editors">
        <p className={classes.note}>
          A new experiment needs the role editor. You are signed in as {session?.name ?? "somebody"} with the role{" "}
          {session?.role ?? "viewer"}. Ask an admin for a token with the role editor.
        </p>
        <Anchor component={Link} to="/experiments" size="sm">
          All experiments
        </Anchor>
      </Alert>
    </div>
  );
}

/** What a new experiment is made from. */
type Source = Pick<Experiment, "id" | "name" | "seed"> & Pick<SpecCopy, "left_out">;

function Editor({ first, of: source }: { first: Spec; of?: Source }) {
  const [text, setText] = useDraft(first);
  const [spec, problem] = useMemo(() => read(text), [text]);
  const set = (path: readonly string[], value: unknown) => setText(withField(text, path, value));
  const navigate = useNavigate();
  const keyOf = useRequestKey();

  const [seconds, setSeconds] = useState<number | "">("");
  const [settled] = useDebouncedValue(text, 400);
  const [pace] = useDebouncedValue(seconds || null, 400);
  const asked = useMemo(() => read(settled)[0], [settled]);
  const check = useQuery({
    queryKey: ["dry-run", settled, pace],
    queryFn: ({ signal }) => api.dryRun(asked!, SAMPLES, pace, signal),
    enabled: asked !== null,
    retry: false,
    placeholderData: (old) => old,
  });
  // Without a driver, the cluster is unknown, and nothing is said about it.
  const cluster = useQuery({
    queryKey: ["cluster"],
    queryFn: ({ signal }) => api.cluster(signal),
    retry: false,
    meta: { needsDriver: true },
  });
  const create = useMutation({ mutationFn: (wanted: Spec) => api.create(wanted, keyOf(wanted)) });
  const open = (made: Experiment) => void navigate(`/experiments/${made.id}`);
  const current = settled === text && !check.isFetching;
  const valid = spec !== null && current && check.isSuccess && !check.isPlaceholderData;
  const scheduler = (spec?.["scheduler"] ?? {}) as Record<string, unknown>;
  const wrong = spec === null ? {} : mistakesOf(check.error);
  const several = Array.isArray(spec?.["metric"]) || Array.isArray(spec?.["mode"]);
  const type = typeof scheduler["type"] === "string" ? scheduler["type"] : "auto";
  return (
    <div className={classes.page}>
      <div>
        <Crumbs items={[{ label: "Experiments", to: "/experiments" }, { label: "new" }]} />
        <h1 className={classes.title}>{source ? `New experiment like “${source.name}”` : "New experiment"}</h1>
      </div>
      {source && source.left_out.length > 0 && (
        <Alert color="yellow" variant="light" title={`Not everything of “${source.name}” can be copied`}>
          <ul className={classes.leftOut}>
            {source.left_out.map(({ pointer, reason }) => (
              <li key={pointer}>
                <b>{fieldName(pointer)}</b>: {reason}.
              </li>
            ))}
          </ul>
          <Anchor component={Link} to={`/experiments/${source.id}`} size="sm">
            Back to “{source.name}”
          </Anchor>
        </Alert>
      )}
      <div className={classes.columns}>
        <Panel title="Form">
          <fieldset className={classes.form} disabled={spec === null}>
            <legend className={classes.hidden}>The spec as a form</legend>
            {spec === null && (
              <p className={classes.legend} role="status">
                Fix the YAML first: it cannot be parsed at the moment.
              </p>
            )}
            <TextInput
              label="Name"
              error={wrong["/name"]}
              value={textOf(spec, "name")}
              onChange={(e) => set(["name"], e.currentTarget.value)}
            />
            <TextInput
              label="Entrypoint"
              error={wrong["/entrypoint"]}
              description="module:function; the ranks call it with a configuration"
              value={textOf(spec, "entrypoint")}
              onChange={(e) => set(["entrypoint"], e.currentTarget.value)}
            />
            <TextInput
              label="Metric"
              error={wrong["/metric"]}
              description={several ? "several objectives: edit them in the YAML" : "its name in tuner.report()"}
              disabled={several}
              value={textOf(spec, "metric")}
              onChange={(e) => set(["metric"], e.currentTarget.value)}
            />
            <Select
              label="Mode"
              error={wrong["/mode"]}
              allowDeselect={false}
              disabled={several}
              placeholder={several ? textOf(spec, "mode") : undefined}
              data={[
                { value: "max", label: "max: higher is better" },
                { value: "min", label: "min: lower is better" },
              ]}
              value={several ? null : textOf(spec, "mode") || null}
              onChange={(value) => set(["mode"], value)}
            />
            <Select
              label="Scheduler"
              error={wrong["/scheduler/type"]}
              allowDeselect={false}
              data={[...new Set([...SCHEDULERS, type])]}
              value={type}
              onChange={(value) => set(["scheduler"], { type: value })}
            />
            <NumberField
              label="Trials"
              error={wrong["/num_samples"]}
              description="empty: as many as the limits allow"
              min={1}
              value={numberOf(spec, "num_samples")}
              onChange={(value) => set(["num_samples"], value === "" ? undefined : value)}
            />
            <NumberField
              label="Longest trial"
              error={wrong["/max_t"]}
              description="max_t, in training iterations"
              min={1}
              value={numberOf(spec, "max_t")}
              placeholder={
                numberOf(scheduler, "max_t") === "" ? undefined : `${numberOf(scheduler, "max_t")}, from the scheduler`
              }
              onChange={(value) => set(["max_t"], value === "" ? undefined : value)}
            />
            <NumberField
              label="Workers per trial"
              error={wrong["/scaling/num_workers"]}
              min={1}
              placeholder="1"
              value={numberOf((spec?.["scaling"] ?? null) as Spec | null, "num_workers")}
              onChange={(value) => set(["scaling", "num_workers"], value === "" ? undefined : value)}
            />
            <Autocomplete
              label="Repeats"
              error={wrong["/limits/repeats"]}
              description="of leading configurations, if results are noisy: auto or a number; empty: none"
              data={["auto"]}
              value={repeatsOf(spec)}
              onChange={(text) => set(["limits", "repeats"], limitOf(text))}
            />
            {source && Number(spec?.["seed"]) === Number(source.seed) && (
              <p className={classes.legend}>
                The seed is that of <b>{source.name}</b>, so a search with the same method and space begins with the
                same configurations.{" "}
                <Button size="compact-xs" variant="default" onClick={() => set(["seed"], newSeed(source.seed))}>
                  Use another seed
                </Button>
              </p>
            )}
            <p className={classes.legend}>Other options can be set in the YAML.</p>
          </fieldset>
        </Panel>
        <div className={classes.wide}>
          <Panel title="Search space">
            <div className={classes.spaceColumns}>
              <fieldset className={classes.form} disabled={spec === null}>
                <legend className={classes.hidden}>The parameters and their domains</legend>
                <SpaceFields
                  spec={spec}
                  wrong={wrong}
                  onChange={(name, domain) => set(["space", name], domain)}
                  onRename={(from, to) => setText(withName(text, from, to))}
                />
              </fieldset>
              {check.data && (
                <div data-old={!current}>
                  <h3 className={classes.samplesTitle}>
                    The first configurations{spec === null && " of the spec as it was before"}
                  </h3>
                  {nothingToSearch(check.data.configurations) ? (
                    <p className={classes.note}>
                      The space has no parameters, so all trials get the same configuration.
                    </p>
                  ) : (
                    <ol className={classes.samples}>
                      {check.data.configurations.map(({ params }, i) => (
                        <li key={i}>{config(readable(params, check.data.labels), check.data.labels)}</li>
                      ))}
                    </ol>
                  )}
                </div>
              )}
            </div>
          </Panel>
        </div>
        <Panel title="The spec as YAML" aside={spec && <CopyMenu call={createCall(spec)} link={false} />}>
          <Textarea
            aria-label="Spec as YAML"
            classNames={{ input: classes.yaml! }}
            autosize
            minRows={18}
            maxRows={32}
            spellCheck={false}
            value={text}
            error={problem}
            onChange={(event) => setText(event.currentTarget.value)}
          />
        </Panel>
        <Panel title="Preview">
          <div aria-live="polite">
            {check.isError && <Mistakes error={check.error} title={wrongTitle(check.error, "It cannot be checked")} />}
            {check.data && !check.isError && spec === null && (
              <p className={classes.note}>
                <b>The YAML cannot be parsed at the moment.</b> This is still the preview of the spec as it was before.
              </p>
            )}
            {check.data && !check.isError && (
              <div data-old={!current}>
                <Facts
                  items={[
                    ["Method", check.data.method],
                    ["Trials", check.data.num_samples ?? "as many as the time budget allows"],
                    [
                      "Longest trial",
                      check.data.max_t === null ? "no limit" : trained(String(check.data.max_t), check.data.time_attr),
                    ],
                    ["Maximum cost", costWords(check.data, pace, cluster.data)],
                    ...(check.data.reached ? [["Expected", reachWords(check.data)] as [string, string]] : []),
                    ["A trial asks for", askedWords(workersOf(check.data.scaling), bundleOf(check.data.scaling))],
                    ...(cluster.data
                      ? [["Room for it", roomWords(check.data.scaling, cluster.data)] as [string, string]]
                      : []),
                  ]}
                />
                {check.data.notes.map((note) => (
                  <p key={note} className={classes.note}>
                    {note}
                  </p>
                ))}
              </div>
            )}
            {!check.data && !check.isError && spec !== null && <Loading what="the preview" height={80} />}
            {!check.data && !check.isError && spec === null && (
              <p className={classes.note}>The preview comes once the YAML can be parsed.</p>
            )}
          </div>
          <div className={classes.send}>
            <NumberField
              label="Seconds per iteration"
              description="optional, to estimate the cost; not part of the spec"
              size="xs"
              min={0.001}
              allowNegative={false}
              value={seconds}
              onChange={setSeconds}
            />
            <Button
              disabled={!valid}
              loading={create.isPending}
              onClick={() => spec && create.mutate(spec, { onSuccess: open })}
            >
              Start the search
            </Button>
            {create.isError && (
              <Mistakes error={create.error} title={wrongTitle(create.error, "It could not be created")} />
            )}
          </div>
        </Panel>
      </div>
    </div>
  );
}

/**
 * The text of the editor. "Back" and "forward" to this entry of the history bring back what was typed, and `SignedIn` lets the browser
 * ask before it is lost with the page. It stays in memory, where signing out drops it too, since a runtime_env may contain secrets.
 */
function useDraft(first: Spec) {
  const client = useQueryClient();
  const entry = useLocation().key;
  const [begin] = useState(() => stringify(first));
  const [text, setText] = useState(() => client.getQueryData<string>(keys.draft(entry)) ?? begin);
  useEffect(() => {
    const queryKey = keys.draft(entry);
    client.setQueryDefaults(queryKey, { gcTime: Infinity });
    if (text === begin) client.removeQueries({ queryKey });
    else client.setQueryData(queryKey, text);
  }, [client, entry, text, begin]);
  return [text, setText] as const;
}

/** Return what the service says about each field of the spec, by its pointer. */
function mistakesOf(error: unknown): Readonly<Record<string, string>> {
  const found = error instanceof ApiError ? (error.problem?.errors ?? []) : [];
  return Object.fromEntries(found.map(({ pointer, message }) => [pointer, message]));
}

/** "The spec is not valid: 3 mistakes", or the other title if the error says nothing about the spec. */
function wrongTitle(error: unknown, otherwise: string): string {
  if (!(error instanceof ApiError && error.refused)) return otherwise;
  const count = error.problem?.errors?.length ?? 0;
  return `The spec is not valid${count > 1 ? `: ${count} mistakes` : ""}`;
}

function nothingToSearch(configurations: readonly { params: object }[]): boolean {
  return configurations.length > 0 && configurations.every(({ params }) => Object.keys(params).length === 0);
}
