import { Anchor, Button, Switch, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client";
import type { Experiment, Replay } from "../../api/types";
import { duration, leading, metric, plural } from "../../format";
import { replayCall } from "../../charts/copies";
import type { Address } from "../../pages/useAddress";
import { CopyMenu } from "../common/CopyMenu";
import { Mistakes } from "../common/Mistakes";
import { NumberField } from "../common/NumberField";
import { Panel } from "../common/Panel";
import { Select } from "../common/Select";
import { useAtOnce } from "../common/useAtOnce";
import classes from "./WhatIf.module.css";

const SCHEDULERS = ["asha", "hyperband", "median", "fifo", "freeze_thaw"];

interface WhatIfProps {
  experiment: Experiment;
  onSelect: (number: number) => void;
  /** Keeps the choices of the form, so that a link contains them. */
  address: Address;
}

/**
 * Compare what happened with what would have happened under another scheduler. The recorded trials are replayed;
 * nothing is trained.
 */
export function WhatIf({ experiment, onSelect, address }: WhatIfProps) {
  const scheduler = SCHEDULERS.find((one) => one === address.get("if")) ?? null;
  const [options, setOptions] = useState(address.get("ifwith") ?? "");
  const slots = Number(address.get("ifslots"));
  const concurrent = Number.isInteger(slots) && slots > 0 ? slots : null;
  const [typed, setTyped] = useAtOnce<number | "">(concurrent ?? "", (value) =>
    address.set({ ifslots: value === "" ? null : String(value) }),
  );
  const asked = {
    scheduler: scheduler === null ? null : { type: scheduler, ...optionsOf(options) },
    search: null,
    max_concurrent_trials: concurrent,
  };
  // A link with choices also shows their outcome.
  const [run, setRun] = useState(scheduler === null && concurrent === null ? null : asked);
  const replay = useQuery({
    queryKey: ["replay", experiment.id, run],
    queryFn: () => api.replay(experiment.id, run!),
    enabled: run !== null,
    retry: false,
    staleTime: Infinity,
    refetchOnWindowFocus: false,
  });
  return (
    <Panel title="What if?" aside={<CopyMenu call={replayCall(experiment.id, asked)} />}>
      <p className={classes.words}>
        Replay the recorded reports of the trials under another scheduler, and compare the outcome. Nothing is trained
        or changed.
      </p>
      <form
        className={classes.form}
        onSubmit={(event) => {
          event.preventDefault();
          if (JSON.stringify(asked) === JSON.stringify(run)) void replay.refetch();
          else setRun(asked);
        }}
      >
        <Select
          label="Scheduler"
          size="xs"
          placeholder="as it was"
          clearable
          data={SCHEDULERS}
          value={scheduler}
          onChange={(value) => address.set({ if: value })}
        />
        <TextInput
          label="Its options"
          size="xs"
          placeholder="reduction_factor=4, grace_period=2"
          w={260}
          disabled={scheduler === null}
          value={options}
          onChange={(event) => setOptions(event.currentTarget.value)}
          onBlur={() => address.set({ ifwith: options })}
        />
        <NumberField
          label="Trials at the same time"
          size="xs"
          placeholder="as it was"
          w={170}
          min={1}
          allowDecimal={false}
          value={typed}
          onChange={setTyped}
        />
        <Button
          type="submit"
          size="xs"
          loading={replay.isFetching}
          disabled={scheduler === null && concurrent === null}
        >
          Replay
        </Button>
      </form>
      {replay.isError && <Mistakes error={replay.error} title="It could not be replayed" />}
      {replay.data && <Compared replay={replay.data} experiment={experiment} onSelect={onSelect} />}
    </Panel>
  );
}

/** "reduction_factor=4, brackets=2" as an object. A value that is not JSON is text. */
export function optionsOf(text: string): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const part of text.split(",")) {
    const [name = "", ...rest] = part.split("=");
    if (name.trim() === "") continue;
    const value = rest.join("=").trim();
    try {
      found[name.trim()] = JSON.parse(value);
    } catch {
      found[name.trim()] = value;
    }
  }
  return found;
}

interface ComparedProps extends Omit<WhatIfProps, "address"> {
  replay: Replay;
}

export function Compared({ replay, experiment, onSelect }: ComparedProps) {
  const [all, setAll] = useState(false);
  const rows = rowsOf(replay, experiment);
  const others = replay.trials.filter((one) => isDifferent(one));
  const shown = all ? replay.trials : others;
  return (
    <div className={classes.result}>
      <p className={classes.summary} role="status">
        {replay.summary}
      </p>
      <div className={classes.scroll} tabIndex={0} role="region" aria-label="Recorded and replayed">
        <table className={classes.table} aria-label="Recorded and replayed">
          <thead>
            <tr>
              <th scope="col">
                <span className={classes.hidden}>What</span>
              </th>
              <th scope="col">What happened ({experiment.method})</th>
              <th scope="col">What would have happened ({replay.method})</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ name, before, after, better }) => (
              <tr key={name} data-better={better}>
                <th scope="row">{name}</th>
                <td>{before}</td>
                <td>
                  {after}
                  {better && " (better)"}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {replay.notes.length > 0 && (
        <ul className={classes.notes}>
          {replay.notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
      <div className={classes.head}>
        <b>
          {others.length === 0
            ? "Every trial would have ended in the same way."
            : `${others.length} of ${plural(replay.trials.length, "trial")} would have ended differently`}
        </b>
        <Switch size="xs" label="Show all trials" checked={all} onChange={(e) => setAll(e.currentTarget.checked)} />
      </div>
      {shown.length > 0 && (
        <div className={classes.scroll} tabIndex={0} role="region" aria-label="Trials side by side">
          <table className={classes.table} aria-label="Trials side by side">
            <thead>
              <tr>
                <th scope="col">Trial</th>
                <th scope="col">Recorded</th>
                <th scope="col">Replayed</th>
              </tr>
            </thead>
            <tbody>
              {shown.slice(0, MOST).map((one) => (
                <tr key={one.number}>
                  <td>
                    <Anchor component="button" type="button" size="sm" onClick={() => onSelect(one.number)}>
                      {one.number}
                    </Anchor>
                  </td>
                  <td>{outcome(one.recorded)}</td>
                  <td>{one.replayed ? outcome(one.replayed) : "not started"}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {shown.length > MOST && (
            <p className={classes.words}>
              {shown.length - MOST} more {shown.length - MOST === 1 ? "is" : "are"} not shown.
            </p>
          )}
        </div>
      )}
    </div>
  );
}

interface Row {
  name: string;
  before: string;
  after: string;
  /** The replay is known to be better. */
  better: boolean;
}

/**
 * Return the rows that compare a replay with what happened. If records end before the trials would have, costs are lower
 * bounds and the result is not known, so nothing is called better.
 */
export function rowsOf(replay: Replay, experiment: Pick<Experiment, "metric" | "mode" | "scope">): Row[] {
  const { recorded, replayed, trials } = replay;
  const cut = replay.censored > 0;
  const cost = (name: string, before: number, after: number, write: (value: number) => string): Row => {
    const [then, now] = [write(before), write(after)];
    return { name, before: then, after: cut ? `at least ${now}` : now, better: !cut && after < before && then !== now };
  };
  const known = (text: string) => (cut ? `not known; ${text} where the records end` : text);
  const sign = experiment.mode === "min" ? -1 : 1;
  const [before, after] = [recorded.best_value, replayed.best_value];
  const failed = (side: "recorded" | "replayed", number: number | null) =>
    trials.some((one) => one.number === number && one[side]?.state === "failed") ? ", which failed" : "";
  const said = (side: "recorded" | "replayed", number: number | null) =>
    number === null ? "–" : `trial ${number}${failed(side, number)}`;
  return [
    { name: "Trials started", before: String(recorded.trials), after: String(replayed.trials), better: false },
    cost("Reports", recorded.reports, replayed.reports, (value) => value.toLocaleString("en")),
    cost("Training of all trials", recorded.training_s, replayed.training_s, duration),
    cost("From start to end", recorded.duration_s, replayed.duration_s, duration),
    {
      name: leading(experiment),
      before: metric(before),
      after: known(metric(after)),
      better: !cut && after !== null && before !== null && sign * (after - before) > 0,
    },
    {
      name: "Best trial",
      before: said("recorded", recorded.best_trial),
      after: known(said("replayed", replayed.best_trial)),
      better: false,
    },
  ];
}

const MOST = 200;
type Outcome = Replay["trials"][number]["recorded"];

function isDifferent({ recorded, replayed }: Replay["trials"][number]): boolean {
  return replayed === null || recorded.state !== replayed.state || recorded.iterations !== replayed.iterations;
}

function outcome({ state, iterations, value, reason }: Outcome) {
  return (
    <>
      {state === "censored" ? "would have continued" : state} after {iterations}{" "}
      {iterations === 1 ? "report" : "reports"}, {metric(value)}
      {reason && <span className={classes.reason}>{reason}</span>}
    </>
  );
}
