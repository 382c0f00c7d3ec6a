import { Button, Group } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client";
import type { Profile as Found, ProfileAsked, TrialWithSegments } from "../../api/types";
import { download } from "../../charts/save";
import { collapsed, hottest, place } from "../../charts/flame";
import { FlameGraph } from "../../charts/FlameGraph";
import { bytes, plural } from "../../format";
import { hasEnded } from "../../live/states";
import { Mistakes } from "../common/Mistakes";
import { Select } from "../common/Select";
import classes from "./TrialDetails.module.css";
import { useNow } from "../common/useNow";

const SECONDS = [2, 5, 10, 30, 60];
const LINES = 10;

/** Profile a running rank for a few seconds: show where its time goes, or what it allocates. */
export default function Profile({ trial }: { trial: TrialWithSegments }) {
  const count = ranks(trial);
  const [rank, setRank] = useState("0");
  const [kind, setKind] = useState<ProfileAsked["kind"]>("cpu");
  const [seconds, setSeconds] = useState("5");
  const asked = useMutation({ mutationFn: (asking: ProfileAsked) => api.profile(trial.id, asking) });
  const running = trial.state === "running";
  return (
    <>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          asked.mutate({ rank: Number(rank), kind, duration_s: Number(seconds) });
        }}
      >
        <Group gap="xs" mb="xs">
          <Select
            size="xs"
            w={100}
            aria-label="Rank"
            allowDeselect={false}
            value={rank}
            onChange={(value) => setRank(value ?? "0")}
            data={Array.from({ length: count }, (_, i) => ({ value: String(i), label: `rank ${i}` }))}
          />
          <Select
            size="xs"
            w={140}
            aria-label="What to observe"
            allowDeselect={false}
            value={kind}
            onChange={(value) => setKind(value === "memory" ? "memory" : "cpu")}
            data={[
              { value: "cpu", label: "time" },
              { value: "memory", label: "memory" },
            ]}
          />
          <Select
            size="xs"
            w={90}
            aria-label="For how long"
            allowDeselect={false}
            value={seconds}
            onChange={(value) => setSeconds(value ?? "5")}
            data={SECONDS.map((one) => ({ value: String(one), label: `${one} s` }))}
          />
          <Button type="submit" size="xs" loading={asked.isPending} disabled={!running}>
            Profile
          </Button>
        </Group>
      </form>
      {!running && !asked.data && (
        <p className={classes.none}>
          {hasEnded(trial.state) ? "The trial has ended" : "The trial is not training at the moment"}: only running
          ranks can be profiled.
        </p>
      )}
      {asked.isPending && <Waiting asking={asked.variables} />}
      {asked.isError && <Mistakes error={asked.error} title="The rank could not be profiled" />}
      {asked.data && <Shown key={asked.submittedAt} profile={asked.data} name={`trial_${trial.number}`} />}
      {!asked.data && !asked.isPending && running && (
        <p className={classes.none}>
          The rank keeps training. Sampling its stacks costs little time. Tracing its memory slows down its Python code.
        </p>
      )}
    </>
  );
}

/** The number of ranks that the newest segment was placed with. */
export function ranks({ segments }: Pick<TrialWithSegments, "segments">): number {
  const placed = segments[segments.length - 1]?.placement["ranks"];
  return Array.isArray(placed) && placed.length > 0 ? placed.length : 1;
}

function Waiting({ asking }: { asking: ProfileAsked }) {
  const now = useNow(true);
  const [since] = useState(now);
  const left = Math.max(0, Math.ceil(asking.duration_s - (now - since) / 1000));
  return (
    <p className={classes.none} role="status">
      {left > 0 ? `Profiling rank ${asking.rank}, ${left} s left…` : `Rank ${asking.rank} is summarizing the profile…`}
    </p>
  );
}

/** The words for seconds of a profile. */
export function shortly(seconds: number): string {
  return seconds < 0.9995 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(2)} s`;
}

interface ShownProps {
  profile: Found;
  /** The beginning of the names of files. */
  name: string;
}

function Shown({ profile, name }: ShownProps) {
  const { cpu, memory, speedscope } = profile;
  const [index, setIndex] = useState(0);
  const part = speedscope.profiles[index];
  const frames = speedscope.shared.frames;
  const say = memory ? bytes : shortly;
  const file = `${name}_rank${profile.rank}_${profile.kind}`;
  const save = (ending: string, content: string) => download(`${file}.${ending}`, new Blob([content]));
  return (
    <>
      <p>
        {`Rank ${profile.rank}, segment ${profile.segment}, profiled for ${shortly(profile.duration_s)}`}
        {!profile.complete && ", until the segment ended"}.{" "}
        {cpu &&
          `The process used ${shortly(cpu.cpu_s)} of CPU time; the ${plural(cpu.samples, "sample")} cost ${shortly(cpu.sampler_cpu_s)}.`}
        {memory &&
          `Resident memory went from ${bytes(memory.rss_start_bytes)} to ${bytes(memory.rss_end_bytes)}, with at most ` +
            `${bytes(memory.rss_peak_bytes)}. Of the memory that ${memory.tracer === "memray" ? "was" : "Python"} allocated meanwhile, ${bytes(memory.traced_bytes)} remain.`}
        {memory?.gpu_end_bytes != null && ` GPU memory of torch: ${bytes(memory.gpu_end_bytes)} at the end.`}
      </p>
      <Group gap="xs" my="xs">
        {speedscope.profiles.length > 1 && (
          <Select
            size="xs"
            w={220}
            aria-label="Thread"
            allowDeselect={false}
            value={String(index)}
            onChange={(value) => setIndex(Number(value))}
            data={speedscope.profiles.map((one, i) => ({ value: String(i), label: thread(one.name, cpu, i) }))}
          />
        )}
        <Button
          size="compact-xs"
          variant="default"
          onClick={() => save("speedscope.json", JSON.stringify(speedscope))}
          title="A file for https://www.speedscope.app"
        >
          Save for speedscope
        </Button>
        <Button
          size="compact-xs"
          variant="default"
          onClick={() => save("collapsed.txt", collapsed(speedscope))}
          title="A line for each stack, for flamegraph.pl and similar tools"
        >
          Save collapsed stacks
        </Button>
      </Group>
      {part && <FlameGraph key={index} frames={frames} part={part} say={say} />}
      {!part && <p className={classes.none}>Nothing was recorded.</p>}
      {cpu && part && (
        <Lines
          title="Lines with the most time of their own"
          rows={hottest(frames, part, LINES).map(({ frame, own }) => [frame.name, place(frame), frame.file, say(own)])}
        />
      )}
      {memory && memory.lines.length > 0 && (
        <Lines
          title="Lines that allocated most of the remaining memory"
          rows={memory.lines
            .slice(0, LINES)
            .map((one) => [
              one.code,
              place({ name: one.code, file: one.file, line: one.line }),
              one.file,
              `${bytes(one.bytes)} in ${one.blocks} ${one.blocks === 1 ? "block" : "blocks"}`,
            ])}
        />
      )}
      {memory?.gpu_summary && <pre className={classes.pre}>{memory.gpu_summary}</pre>}
      {profile.notes.map((note) => (
        <p key={note} className={classes.dimmed}>
          {note}
        </p>
      ))}
    </>
  );
}

function thread(name: string, cpu: Found["cpu"], index: number): string {
  const used = cpu?.threads[index]?.cpu_s;
  return used == null ? name : `${name} · ${shortly(used)} of CPU`;
}

function Lines({ title, rows }: { title: string; rows: readonly (readonly [string, string, string, string])[] }) {
  return (
    <div className={classes.scroll} tabIndex={0} role="region" aria-label={title}>
      <table className={classes.table}>
        <caption style={{ textAlign: "left" }}>{title}</caption>
        <tbody>
          {rows.map(([what, where, file, weight], i) => (
            <tr key={i}>
              <td>{weight}</td>
              <td title={file}>{where}</td>
              <td>
                <code>{what}</code>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
