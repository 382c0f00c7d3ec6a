import { Button, SegmentedControl, useComputedColorScheme } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { api } from "../../api/client";
import type { Experiment, Timeline } from "../../api/types";
import { timelineCall } from "../../charts/copies";
import {
  BAND,
  byDevice,
  byTrial,
  FAILED,
  MOST_TIMED,
  PHASES,
  shares,
  shareWords,
  timelineRows,
  type Phase,
} from "../../charts/timeline";
import { TimelineChart } from "../../charts/TimelineChart";
import { duration } from "../../format";
import { keys } from "../../live/keys";
import { experimentEnded } from "../../live/states";
import type { Address } from "../../pages/useAddress";
import { Panel } from "../common/Panel";
import classes from "../common/parts.module.css";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";
import { Loading } from "../common/Loading";
import { useAtOnce } from "../common/useAtOnce";

const REFRESH_MS = 3000;

interface TimelineTabProps {
  experiment: Experiment;
  address: Address;
  selected: number | null;
  onSelect: (number: number) => void;
}

/** Show what each trial, node and GPU did over time, so that waste is visible. */
export default function TimelineTab({ experiment, address, selected, onSelect }: TimelineTabProps) {
  const theme = useComputedColorScheme("light");
  const devices = address.get("by") === "device";
  const [byDevices, setByDevices] = useAtOnce(devices, (on) => address.set({ by: on ? "device" : null }));
  const asked = address.get("from");
  const first = asked !== null && /^\d{1,9}$/.test(asked) ? Number(asked) : 0;
  const query = useQuery({
    queryKey: [...keys.experiment(experiment.id), "timeline", first],
    queryFn: ({ signal }) => api.timeline(experiment.id, first, MOST_TIMED, signal),
    refetchInterval: experimentEnded(experiment.state) ? false : REFRESH_MS,
    placeholderData: keepPreviousData,
  });
  const { data } = query;
  const lanes = useMemo(() => (data ? (devices ? byDevice(data) : byTrial(data)) : []), [data, devices]);
  const failed = data?.trials.filter(({ state }) => state === "failed").length ?? 0;
  const failures = data?.trials.reduce((sum, { failed_at }) => sum + failed_at.length, 0) ?? 0;
  const last = data?.trials[data.trials.length - 1]?.trial_number ?? first;
  return (
    <Panel
      title="Timeline"
      aside={
        <div className={classes.filterRow}>
          <SegmentedControl
            size="xs"
            aria-label="Lanes"
            value={byDevices ? "device" : "trial"}
            onChange={(value) => setByDevices(value === "device")}
            data={[
              { value: "trial", label: "by trial" },
              { value: "device", label: "by node and GPU" },
            ]}
          />
          <SaveMenu
            name={`${experiment.name} timeline`}
            rows={() => timelineRows(lanes)}
            call={timelineCall(experiment.id, first)}
          />
        </div>
      }
    >
      {query.isError && !data && <ProblemBox error={query.error} what="timeline" retry={() => void query.refetch()} />}
      {query.isLoading && <Loading what="timeline" height={240} />}
      {data && (
        <>
          <ul className={classes.legend} aria-label="Time by phase, summed over trials">
            {shares(data.totals).map(({ phase, seconds, share }) => (
              <li key={phase} title={MEANS[phase]}>
                <Swatch phase={phase} theme={theme} /> {PHASES[phase].words} <b>{duration(seconds)}</b> (
                {shareWords(share)})
              </li>
            ))}
            {devices && (
              <li>
                <Swatch phase="idle" theme={theme} /> idle
              </li>
            )}
            {failed > 0 && !devices && (
              <li>
                <b style={{ color: FAILED[theme] }} aria-hidden>
                  ✕
                </b>{" "}
                failed: {failed} {failed === 1 ? "trial" : "trials"}
                {failures > failed && `, ${failures} failures in all`}
              </li>
            )}
          </ul>
          <p className={classes.sumWords}>
            Times are sums over {data.total > data.trials.length ? "the trials below" : "all trials"}, so they exceed
            the running time of the experiment if several trials run at the same time. The axis shows the time that the
            search has run.{pauseWords(data.pauses)}
            {devices && lanes.some(({ label }) => label.includes(" slot ")) && SLOTS}
            {!devices && (data.totals["paused"] ?? 0) > 0 && PAUSED}
          </p>
          {lanes.length > 0 ? (
            <TimelineChart
              lanes={lanes}
              seconds={data.duration_s}
              pauses={data.pauses}
              label={`Timeline of ${lanes.length} ${devices ? "devices" : "trials"} over ${duration(data.duration_s)}`}
              selected={selected}
              onSelect={onSelect}
            />
          ) : (
            <div className={classes.empty} style={{ height: 160 }}>
              {devices
                ? "No trial has been placed on a node yet."
                : "No trial has been started yet. This will show how long each trial waited, started and trained."}
            </div>
          )}
          {(first > 0 || data.total > data.trials.length) && (
            <p className={classes.sample}>
              Trials {first} to {last} of {data.total}.{" "}
              <Button
                size="compact-xs"
                variant="default"
                disabled={first === 0}
                onClick={() => address.set({ from: first <= MOST_TIMED ? null : String(first - MOST_TIMED) })}
              >
                Earlier
              </Button>{" "}
              <Button
                size="compact-xs"
                variant="default"
                disabled={last + 1 >= data.total}
                onClick={() => address.set({ from: String(first + MOST_TIMED) })}
              >
                Later
              </Button>
            </p>
          )}
        </>
      )}
    </Panel>
  );
}

const PAUSED =
  " A paused trial has a checkpoint and holds no resources: it waits for its turn, for other trials, or for a user. Its decisions say which.";
const SLOTS =
  " On a node without GPUs, a slot is the place of one worker: there are as many as ran there at the same time. The percentage is the share of the time in which trials held it.";

/** The tooltips of the legend. */
const MEANS: Partial<Record<Phase, string>> = {
  running:
    "From the start of the training function until all its processes have left the function, not counting checkpointing",
  starting: "The processes start and load the code",
  restarting:
    "The processes start again after a pause, a failure or a change of the number of ranks, or new ones start after an exploit",
  checkpointing: "The training waits until a checkpoint has been copied",
  waiting: "The trial may run, but its resources are not free yet",
  paused: "The trial has a checkpoint and holds no resources",
};

function Swatch({ phase, theme }: { phase: Phase; theme: "light" | "dark" }) {
  const { [theme]: colour, share, band } = PHASES[phase];
  const inside = band ? `color-mix(in srgb, ${colour} ${100 * BAND}%, transparent)` : colour;
  return (
    <i
      style={{
        background: inside,
        height: 12 * share,
        ...(band && { outline: `1px solid ${colour}`, outlineOffset: -1 }),
      }}
    />
  );
}

/** Say what the dashed lines mark and how long the search was idle in all; "" if it never was. */
function pauseWords(pauses: Timeline["pauses"]): string {
  const whole = duration(pauses.reduce((sum, { seconds }) => sum + seconds, 0));
  if (pauses.length === 0) return "";
  return pauses.length === 1
    ? ` The dashed line marks ${whole} in which the search was paused or had ended.`
    : ` Each of the ${pauses.length} dashed lines marks a time in which the search was paused or had ended; together ${whole}.`;
}
