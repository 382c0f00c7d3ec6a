import { Anchor, SegmentedControl, Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import type { Experiment, Lineage as Found, LineageSegment, TrialWithSegments } from "../../api/types";
import { config, param, paramName, readable } from "../../format";
import { hasEnded } from "../../live/states";
import type { Address } from "../../pages/useAddress";
import { Heading } from "../common/Heading";
import { ProblemBox } from "../common/Problem";
import { useAtOnce } from "../common/useAtOnce";
import { lineageQuery, mayHaveChanged, Schedule } from "./Schedule";
import classes from "./TrialDetails.module.css";

const REFRESH_MS = 5000;

interface OfTrialProps {
  trial: TrialWithSegments;
  labels: Experiment["labels"];
  onSelect: (number: number) => void;
  /** The address of the page, which contains the choice of the weights. */
  address: Address;
}

/**
 * The origin of a trial's weights: segments of this and of other trials, oldest first, and the schedule that reproduces them. If the
 * trial may have continued from other weights after its best value, the user chooses between the newest weights and those.
 */
export function Lineage({ trial, labels, onSelect, address }: OfTrialProps) {
  const { best_iteration, segments } = trial;
  const choice = best_iteration !== null && (segments.length > 1 || mayHaveChanged(segments));
  const at = choice && address.get("weights") === "best" ? "best" : "newest";
  const [shownAt, setAt] = useAtOnce<string>(at, (one) => address.set({ weights: one === "best" ? "best" : null }));
  const query = useQuery({
    ...lineageQuery(trial.id, at, at === "best" ? best_iteration : segments.length),
    refetchInterval: hasEnded(trial.state) ? false : REFRESH_MS, // the newest segment grows
    placeholderData: (old, before) => (before?.queryKey[3] === at ? old : undefined), // not the other weights
  });
  const found = query.data?.trial_id === trial.id ? query.data : undefined;
  return (
    <>
      {choice && (
        <SegmentedControl
          size="xs"
          mb={8}
          aria-label="Weights"
          value={shownAt}
          onChange={setAt}
          data={[
            { value: "newest", label: `newest (iteration ${trial.iteration})` },
            { value: "best", label: `best value (iteration ${best_iteration})` },
          ]}
        />
      )}
      {query.isError && !found ? (
        <ProblemBox error={query.error} what="lineage" retry={() => void query.refetch()} />
      ) : found ? (
        <LineageOf found={found} newest={at === "newest"} labels={labels} onSelect={onSelect} />
      ) : (
        <Skeleton height={120} />
      )}
    </>
  );
}

interface LineageProps {
  found: Found;
  /** The weights are the trial's newest ones. */
  newest?: boolean;
  labels: Experiment["labels"];
  onSelect: (number: number) => void;
}

export function LineageOf({ found, newest = true, labels, onSelect }: LineageProps) {
  if (found.items.length === 0) return <p className={classes.none}>It has no weights yet.</p>;
  const others = new Set(found.items.map((item) => item.trial_number));
  others.delete(found.trial_number);
  return (
    <div className={classes.overview}>
      <Heading>
        {others.size === 0
          ? "Only its own training"
          : `Through ${others.size === 1 ? "one other trial" : `${others.size} other trials`}`}
      </Heading>
      <ol className={classes.segments} aria-label="Lineage, oldest first">
        {found.items.map((item, i) => (
          <li key={item.id} data-cause={item.cause}>
            <p>
              {item.trial_number === found.trial_number ? (
                <b>Trial {item.trial_number}</b>
              ) : (
                <Anchor component="button" type="button" size="sm" fw={600} onClick={() => onSelect(item.trial_number)}>
                  Trial {item.trial_number}
                </Anchor>
              )}
              , {span(item)} <span>· {WORDS[item.cause](item.trial_number, found.items[i - 1]?.trial_number)}</span>
            </p>
            <p>{i === 0 ? config(readable(item.params, labels), labels) : changes(item, labels)}</p>
          </li>
        ))}
      </ol>
      {found.schedule.length > 1 && (
        <>
          <Heading>Schedule to reproduce these weights</Heading>
          <Schedule found={found} labels={labels} />
          {newest && (
            <p className={classes.dimmed}>
              <code>tuner schedule {found.trial_id}</code> prints it, too.
            </p>
          )}
        </>
      )}
    </div>
  );
}

const WORDS: Record<LineageSegment["cause"], (own: number, before: number | undefined) => string> = {
  start: () => "started",
  retry: () => "run again",
  resume: () => "resumed",
  resize: () => "resized",
  fork: (_, before) => (before === undefined ? "forked" : `forked from trial ${before}`),
  exploit: (own, before) =>
    before === undefined
      ? "exploit"
      : before === own
        ? "continued with other parameters"
        : `exploit of trial ${before}`,
};

function span({ start_iteration: start, end_iteration: end }: LineageSegment): string {
  return end > start + 1
    ? `iterations ${start + 1} to ${end}`
    : end > start
      ? `iteration ${end}`
      : `at iteration ${start}`;
}

/** Say what has changed since the segment before: "lr 0.1 → 0.12". */
function changes({ changes }: LineageSegment, labels: Experiment["labels"]): string {
  const say = (name: string, value: unknown) => param(readable({ [name]: value }, labels)[name]);
  return (
    Object.entries(changes)
      .map(([name, { before, after }]) => `${paramName(name, labels)} ${say(name, before)} → ${say(name, after)}`)
      .join(", ") || "same configuration"
  );
}
