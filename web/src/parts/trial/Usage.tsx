import { Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import type { TrialWithSegments, UsageSeries } from "../../api/types";
import { bytes } from "../../format";
import { hasEnded } from "../../live/states";
import { trialCall } from "../../charts/copies";
import { usageRows } from "../../charts/save";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";
import classes from "./TrialDetails.module.css";

const WIDTH = 120;
const HEIGHT = 24;

/** Show the resource usage of each rank while it trained, by segment, the newest first. */
export function Usage({ trial }: { trial: TrialWithSegments }) {
  const query = useQuery({
    queryKey: ["trial", trial.id, "usage"],
    queryFn: ({ signal }) => api.usage(trial.id, signal),
    refetchInterval: hasEnded(trial.state) ? false : 10_000,
  });
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="usage" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={120} />;
  const items = query.data.items;
  if (items.length === 0)
    return <p className={classes.none}>No samples: a sample is taken every few seconds while the ranks train.</p>;
  const gpus = items.some((item) => item.gpu_reserved_bytes.some((value) => value !== null));
  const segments = [...new Set(items.map((item) => item.segment))].sort((a, b) => b - a);
  return (
    <figure className={classes.usages}>
      <figcaption>
        CPU and memory of each rank while it trained{" "}
        <SaveMenu
          name={`trial ${trial.number} usage`}
          rows={() => usageRows(items)}
          call={trialCall(trial, "usage", { segment: null, rank: null, search: null })}
        />
      </figcaption>
      <div>
        {segments.map((segment) => (
          <table key={segment} className={classes.usage} aria-label={`Usage in segment ${segment}`}>
            <thead>
              <tr>
                <th>{segments.length > 1 ? `Segment ${segment}` : "Rank"}</th>
                <th>CPU</th>
                <th>Memory</th>
                {gpus && (
                  <>
                    <th>GPU</th>
                    <th>GPU memory</th>
                  </>
                )}
              </tr>
            </thead>
            <tbody>
              {items
                .filter((item) => item.segment === segment)
                .map((item) => (
                  <Row key={item.rank} item={item} gpus={gpus} />
                ))}
            </tbody>
          </table>
        ))}
      </div>
    </figure>
  );
}

function Row({ item, gpus }: { item: UsageSeries; gpus: boolean }) {
  const percent = (value: number) => `${Math.round(value)} %`;
  return (
    <tr>
      <td>rank {item.rank}</td>
      <Cell x={item.x} y={item.cpu_percent} say={percent} what={`CPU of rank ${item.rank}`} />
      <Cell x={item.x} y={item.rss_bytes} say={bytes} what={`Memory of rank ${item.rank}`} />
      {gpus && <Cell x={item.x} y={item.gpu_percent} say={percent} what={`GPU of rank ${item.rank}`} />}
      {gpus && <Cell x={item.x} y={item.gpu_reserved_bytes} say={bytes} what={`GPU memory of rank ${item.rank}`} />}
    </tr>
  );
}

interface CellProps {
  x: readonly number[];
  y: readonly (number | null)[];
  say: (value: number) => string;
  what: string;
}

function Cell({ x, y, say, what }: CellProps) {
  const known = y.filter((value) => value !== null);
  const last = known[known.length - 1];
  if (last === undefined) return <td>–</td>;
  const peak = Math.max(...known);
  return (
    <td>
      {known.length > 1 && (
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${what} over time, now ${say(last)}, at most ${say(peak)}`}
        >
          <path d={spark(x, y, WIDTH, HEIGHT)} />
        </svg>
      )}
      <span>{say(last)}</span> {known.length > 1 ? <small>max {say(peak)}</small> : <small>one sample</small>}
    </td>
  );
}

/** A line through the points, from zero at the bottom to the highest at the top; with a gap for each missing value. */
export function spark(x: readonly number[], y: readonly (number | null)[], width: number, height: number): string {
  const top = Math.max(...y.map((value) => value ?? 0)) || 1;
  const begin = x[0] ?? 0;
  const span = (x[x.length - 1] ?? 0) - begin || 1;
  let pen = "M";
  const parts: string[] = [];
  y.forEach((value, i) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const across = 1 + ((x[i]! - begin) / span) * (width - 2);
    parts.push(`${pen}${across.toFixed(1)} ${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`);
    pen = "L";
  });
  return parts.length === 1 ? `${parts[0]}h1` : parts.join("");
}
