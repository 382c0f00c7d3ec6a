import { Anchor, Button, Skeleton, TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Fragment, useState } from "react";
import { Link, useNavigate } from "react-router";
import { api } from "../api/client";
import type { Experiment, ExperimentState } from "../api/types";
import { experimentsCall } from "../charts/copies";
import { ago, config, duration, leading, metric, moment, ran, ranWords, readable, runsOf } from "../format";
import { keys } from "../live/keys";
import { BulkActions } from "../parts/actions/Actions";
import { Select } from "../parts/common/Select";
import { FirstExperiment } from "../parts/experiments/FirstExperiment";
import { Panel } from "../parts/common/Panel";
import { ProblemBox } from "../parts/common/Problem";
import { Progress, spentShare } from "../parts/experiments/Progress";
import { CopyMenu } from "../parts/common/CopyMenu";
import { FrontCount, FrontSpark, Spark, SPARK_AXES } from "../parts/experiments/Spark";
import { StateBadge } from "../parts/common/StateBadge";
import { useNow } from "../parts/common/useNow";
import { useMayChange } from "../parts/common/useSession";
import { useTitle } from "../parts/common/useTitle";
import { useTyped } from "../parts/common/useTyped";
import { useAtOnce } from "../parts/common/useAtOnce";
import classes from "./pages.module.css";
import { inUse, onlyWaits } from "./held";
import { useAddress } from "./useAddress";

/** The maximum number of letters that the service searches for. */
const LONGEST_NAME = 200;
const NO_FILTERS = { state: null, name: null, tag: null, project: null };
const STATES: ExperimentState[] = ["running", "pending", "paused", "completed", "failed", "cancelled"];

/**
 * The columns that the service sorts by: their titles, whether they begin with the largest value, and the words for the
 * ascending and the descending order. The best values are ordered as numbers, whether objectives are minimized or maximized.
 */
const SORTED_BY = {
  state: { title: "State", descending: false, orders: ["A to Z", "Z to A"] },
  name: { title: "Name", descending: false, orders: ["A to Z", "Z to A"] },
  trials: { title: "Trials ended", descending: true, orders: ["fewest first", "most first"] },
  best: { title: "Best value", descending: true, orders: ["smallest first", "largest first"] },
  method: { title: "Method", descending: false, orders: ["A to Z", "Z to A"] },
  started: { title: "Started", descending: true, orders: ["oldest first", "newest first"] },
  duration: { title: "Duration", descending: true, orders: ["shortest first", "longest first"] },
} as const;
type SortedBy = keyof typeof SORTED_BY;

/** Return the order after a click on a column: its usual order, then the opposite one, and then the list's own. */
export function nextSort(sort: string, column: SortedBy): string {
  const { descending } = SORTED_BY[column];
  const [usual, opposite] = descending ? [`-${column}`, column] : [column, `-${column}`];
  return sort === usual ? opposite : sort === opposite ? "" : usual;
}

/** Return whether the service can sort by this: a column, with a minus before it for descending order. */
export function isSorted(text: string): boolean {
  return Object.hasOwn(SORTED_BY, text.replace(/^-/, ""));
}

/** The choices of the phone's menu: each column in its usual order, and the current order if it is the opposite of one. */
export function sortChoices(sort: string): { value: string; label: string }[] {
  return (Object.keys(SORTED_BY) as SortedBy[]).flatMap((column) => {
    const usual = nextSort("", column);
    const opposite = nextSort(usual, column);
    return [usual, ...(sort === opposite ? [opposite] : [])].map((value) => ({ value, label: inWords(value, column) }));
  });
}

function inWords(sort: string, column: SortedBy): string {
  const { title, orders } = SORTED_BY[column];
  return `by ${title.toLowerCase()}, ${orders[sort.startsWith("-") ? 1 : 0]}`;
}

export default function ExperimentsPage() {
  useTitle("Experiments");
  const address = useAddress();
  const asked = address.get("state");
  const state = STATES.find((one) => one === asked) ?? "";
  const name = (address.get("name") ?? "").slice(0, LONGEST_NAME);
  const tag = address.get("tag") ?? "";
  const project = address.get("project") ?? "";
  const archived = address.get("archived") === "yes";
  const wanted = address.get("sort") ?? "";
  const sort = isSorted(wanted) ? wanted : "";
  const filter = (key: string, value: string) => address.set({ [key]: value });
  const [showsArchived, setShowsArchived] = useAtOnce(archived, (on) => filter("archived", on ? "yes" : ""));
  const filterName = useDebouncedCallback((value: string) => filter("name", value.trim()), 250);
  const typedName = useTyped(name, (value) => {
    filterName(value);
    return value;
  });

  const narrowed = {
    ...(name ? { name } : {}),
    ...(tag ? { tag: [tag] } : {}),
    ...(project ? { project } : {}),
    ...(archived ? { archived: "yes" as const } : {}),
    ...(sort ? { sort } : {}),
  };
  const query = useInfiniteQuery({
    queryKey: [...keys.experiments, state, name, tag, project, archived, sort],
    queryFn: ({ pageParam, signal }) =>
      api.experiments(
        {
          page_size: 50,
          ...(state ? { state } : {}),
          ...narrowed,
          ...(pageParam ? { page_token: pageParam } : {}),
        },
        signal,
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_page_token ?? undefined,
    refetchInterval: 2000,
    placeholderData: (old) => old,
  });
  // Running experiments come first, however old they are. With a state filter or an order, there is one list in that order.
  const running = useQuery({
    queryKey: [...keys.experiments, "first", name, tag, project],
    queryFn: ({ signal }) => api.experiments({ state: "running", page_size: 50, ...narrowed }, signal),
    enabled: !state && !archived && !sort,
    refetchInterval: 2000,
    placeholderData: (old) => old,
  });
  // An experiment that has moved in the order while the pages were read is on two of them.
  const listed = [...byId(query.data?.pages.flatMap((page) => page.items) ?? []).values()];
  const experiments = state || archived || sort ? listed : runningFirst(running.data?.items ?? [], listed);
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set());
  const chosen = experiments.filter((one) => ticked.has(one.id));
  const tick = (id: string, on: boolean) => {
    const next = new Set(ticked);
    if (on) next.add(id);
    else next.delete(id);
    setTicked(next);
  };
  const navigate = useNavigate();
  const mayChange = useMayChange();
  const best = chosen.flatMap((one) => one.best?.trial_id ?? []);
  const projects = new Set(experiments.map((one) => one.project)).size > 1;
  const now = useNow(true);

  const order = { sort, onSort: (column: SortedBy) => filter("sort", nextSort(sort, column)) };
  // While the answer for other filters is on its way, the experiments are those of the earlier ones.
  const empty = query.isSuccess && !query.isPlaceholderData && experiments.length === 0;
  const all = !state && !name && !tag && !project;
  const none = empty && all && !archived;
  const hidden = useQuery({
    queryKey: [...keys.experiments, "hidden"],
    queryFn: ({ signal }) => api.experiments({ archived: "yes", page_size: 1 }, signal),
    enabled: none,
  });
  // The page stays until the answer is there: an element that is gone would take the focus with it.
  const asking = none && hidden.isPending;
  if (none && !asking && !hidden.data?.items.length) return <FirstExperiment />;
  return (
    <>
      <div className={classes.titleRow}>
        <h1>Experiments</h1>
        <div className={classes.filters}>
          {tag && <Chosen what={`label ${tag}`} onClear={() => filter("tag", "")} />}
          {project && <Chosen what={`project ${project}`} onClear={() => filter("project", "")} />}
          <TextInput
            size="xs"
            maxLength={LONGEST_NAME}
            placeholder="Filter by name"
            aria-label="Filter by name"
            data-search
            {...typedName}
          />
          <Select
            size="xs"
            placeholder="Any state"
            aria-label="Filter by state"
            clearable
            data={STATES}
            value={state || null}
            onChange={(value) => filter("state", value ?? "")}
            w={130}
          />
          <Select
            size="xs"
            placeholder="Running first"
            aria-label="Sort"
            className={classes.phoneOnly}
            clearable
            data={sortChoices(sort)}
            value={sort || null}
            onChange={(value) => filter("sort", value ?? "")}
            w={230}
          />
          <label className={classes.check}>
            <input
              type="checkbox"
              checked={showsArchived}
              onChange={(event) => setShowsArchived(event.currentTarget.checked)}
            />
            archived
          </label>
          <CopyMenu call={experimentsCall({ state, name, tag, project, archived, sort })} />
          {mayChange && (
            <Button component={Link} to="/new" size="xs">
              New experiment
            </Button>
          )}
        </div>
      </div>
      {query.isError && !query.data && (
        <ProblemBox error={query.error} what="list of experiments" retry={() => void query.refetch()} />
      )}
      {(query.isLoading || asking) && <Skeleton height={240} />}
      {empty && !asking && (
        <Panel>
          {none
            ? "All experiments are archived."
            : archived && all
              ? "No experiment is archived."
              : "No experiment matches."}{" "}
          <Anchor
            component="button"
            size="sm"
            onClick={() => address.set({ ...NO_FILTERS, archived: none ? "yes" : null })}
          >
            {none ? "Show them" : "Show all"}
          </Anchor>
        </Panel>
      )}
      <BulkActions experiments={chosen} className={classes.bulk}>
        <Button
          size="compact-sm"
          variant="default"
          disabled={chosen.length < 2}
          title="the best value of each experiment over its training, and the differences between them"
          onClick={() => void navigate(`/compare?experiments=${chosen.map((one) => one.id).join(",")}`)}
        >
          Compare
        </Button>
        <Button
          size="compact-sm"
          variant="default"
          disabled={best.length < 2}
          title="the best trial of each"
          onClick={() => void navigate(`/compare?trials=${best.join(",")}`)}
        >
          Compare their best trials
        </Button>
        <Button size="compact-sm" variant="subtle" onClick={() => setTicked(new Set())}>
          Clear
        </Button>
      </BulkActions>
      {experiments.length > 0 && (
        <Panel flush>
          <div className={`${classes.scroll} sideways`}>
            <table className={`${classes.table} ${classes.cards}`} aria-label="Experiments">
              <thead>
                <tr>
                  <Head columns={["state"]} {...order} />
                  <Head columns={["name"]} {...order} />
                  <Head columns={["trials"]} {...order} minWidth={130} />
                  <Head columns={["best"]} {...order} />
                  <th scope="col" className={classes.wide} title={SPARK_AXES}>
                    Best over time
                    <span className={classes.axes}>time →, larger values ↑</span>
                  </th>
                  <th scope="col" className={classes.wide}>
                    Best configuration
                  </th>
                  <Head columns={["method"]} {...order} className={classes.wide} />
                  <Head columns={["started", "duration"]} {...order} className={classes.right} />
                </tr>
              </thead>
              <tbody>
                {experiments.map((one) => (
                  <Row
                    key={one.id}
                    experiment={one}
                    now={now}
                    ticked={ticked.has(one.id)}
                    projects={projects}
                    onFilter={filter}
                    onTick={(on) => tick(one.id, on)}
                  />
                ))}
              </tbody>
            </table>
          </div>
        </Panel>
      )}
      {query.hasNextPage && (
        <Button
          mt="sm"
          size="xs"
          variant="default"
          loading={query.isFetchingNextPage}
          onClick={() => void query.fetchNextPage()}
        >
          {sort ? "More experiments" : "Older experiments"}
        </Button>
      )}
    </>
  );
}

interface HeadProps {
  columns: readonly SortedBy[];
  sort: string;
  onSort: (column: SortedBy) => void;
  className?: string | undefined;
  minWidth?: number;
}

/** The head of a column, with a button for each value that the list can be sorted by. */
function Head({ columns, sort, onSort, className, minWidth }: HeadProps) {
  const down = sort.startsWith("-");
  const active = columns.find((column) => column === sort.replace(/^-/, ""));
  return (
    <th
      scope="col"
      className={className}
      style={{ minWidth }}
      aria-sort={active ? (down ? "descending" : "ascending") : "none"}
    >
      {columns.map((column, i) => (
        <Fragment key={column}>
          {i > 0 && ", "}
          <button
            type="button"
            className={classes.sorter}
            title={active === column ? `sorted ${inWords(sort, column)}` : undefined}
            onClick={() => onSort(column)}
          >
            {SORTED_BY[column].title}
            {active === column && <i aria-hidden> {down ? "▾" : "▴"}</i>}
          </button>
        </Fragment>
      ))}
    </th>
  );
}

/** Return the running experiments, then the others as they are listed; no experiment twice. */
export function runningFirst(running: readonly Experiment[], listed: readonly Experiment[]): readonly Experiment[] {
  return [...byId([...running, ...listed.filter((one) => one.state === "running"), ...listed]).values()];
}

/** Experiments by id: each at its first place, as it was read last. */
function byId(experiments: readonly Experiment[]): ReadonlyMap<string, Experiment> {
  return new Map(experiments.map((one) => [one.id, one]));
}

/** The best value of an objective. Different trials may have reported those of several objectives. */
export function bestOf({ best, metric: first }: Pick<Experiment, "best" | "metric">, name: string): number | null {
  const found = best?.objectives.find((one) => one.metric === name)?.value;
  return found ?? (name === first ? (best?.value ?? null) : null);
}

/** Say what the best value of an objective is: "max reward" or, after repeats, "max reward, mean of 2 runs". */
export function bestWords(
  { best, metric: first }: Pick<Experiment, "best" | "metric">,
  { metric: name, mode }: Experiment["objectives"][number],
): string {
  const runs = name === first ? best?.runs : null;
  return `${mode} ${name}${runs ? `, ${runsOf(runs)}` : ""}`;
}

function Chosen({ what, onClear }: { what: string; onClear: () => void }) {
  return (
    <button type="button" className={classes.chosen} aria-label={`Remove the filter ${what}`} onClick={onClear}>
      {what} ×
    </button>
  );
}

interface RowProps {
  experiment: Experiment;
  now: number;
  ticked: boolean;
  onTick: (on: boolean) => void;
  /** There are several projects, so each row names its own. */
  projects: boolean;
  onFilter: (key: "tag" | "project", value: string) => void;
}

function Row({ experiment, now, ticked, onTick, projects, onFilter }: RowProps) {
  const navigate = useNavigate();
  const to = `/experiments/${experiment.id}`;
  const { best, objectives } = experiment;
  const several = objectives.length > 1;
  const held = inUse(experiment);
  const waits = onlyWaits(experiment);
  const spent = spentShare(experiment);
  return (
    <tr
      className={classes.clickable}
      onClick={(event) => !(event.target as Element).closest("a, input, label, button") && void navigate(to)}
    >
      <td>
        <input
          type="checkbox"
          className={classes.tick}
          aria-label={`Select ${experiment.name}`}
          checked={ticked}
          onChange={(event) => onTick(event.currentTarget.checked)}
        />
        <StateBadge state={experiment.state} />
      </td>
      <td className={classes.name}>
        <Anchor component={Link} to={to} size="sm" fw={600} title={experiment.name}>
          {experiment.name}
        </Anchor>
        {experiment.unreadable && (
          <span className={classes.unreadable} title={experiment.unreadable}>
            {experiment.unreadable}
          </span>
        )}
        {(projects || Object.keys(experiment.tags).length > 0) && (
          <span className={classes.labels}>
            {projects && (
              <button
                type="button"
                title="only this project"
                aria-label={`Only project ${experiment.project}`}
                onClick={() => onFilter("project", experiment.project)}
              >
                {experiment.project}
              </button>
            )}
            {Object.entries(experiment.tags).map(([key, value]) => (
              <button
                key={key}
                type="button"
                title="only experiments with this label"
                aria-label={`Only label ${key}=${value}`}
                onClick={() => onFilter("tag", `${key}=${value}`)}
              >
                {value ? `${key}=${value}` : key}
              </button>
            ))}
          </span>
        )}
      </td>
      <td>
        <Progress experiment={experiment} />
        {spent !== null && <span className={classes.use}>{Math.round(100 * spent)} % of the budget</span>}
        {held && <span className={classes.use}>{held} in use</span>}
        {waits && <span className={classes.use}>{waits}</span>}
      </td>
      <td>
        {objectives.map((one) => (
          <span key={one.metric} className={classes.objective}>
            <b>{metric(bestOf(experiment, one.metric))}</b>{" "}
            <span className={classes.use}>{bestWords(experiment, one)}</span>
          </span>
        ))}
        {several && (
          <>
            <span className={classes.use}>each by its own best trial</span>
            <FrontCount experiment={experiment} className={classes.use} />
          </>
        )}
      </td>
      <td className={classes.wide}>
        {several ? (
          <>
            <FrontSpark experiment={experiment} ran={ran(experiment, now)} />
            <span className={classes.use}>hypervolume</span>
          </>
        ) : (
          <Spark
            id={experiment.id}
            label={leading(experiment)}
            value={best?.value ?? null}
            repeated={!!best?.runs}
            ran={ran(experiment, now)}
          />
        )}
      </td>
      <td
        className={`${classes.wide} ${classes.clip}`}
        title={best ? config(readable(best.params, experiment.labels), experiment.labels) : undefined}
      >
        <span>{best ? config(readable(best.params, experiment.labels), experiment.labels) : "–"}</span>
        {several && best && <span className={classes.use}>of the best {experiment.metric}</span>}
      </td>
      <td className={classes.wide}>{experiment.method}</td>
      <td
        className={classes.right}
        title={`started ${moment(experiment.started_at ?? experiment.created_at)}, ran ${ranWords(experiment, now)}`}
      >
        {ago(experiment.started_at ?? experiment.created_at, now)}
        <span className={classes.took}>{duration(ran(experiment, now))}</span>
      </td>
    </tr>
  );
}
