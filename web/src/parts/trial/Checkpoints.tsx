import { Anchor, Button } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, useState, type MouseEvent } from "react";
import { api } from "../../api/client";
import type { CheckpointItem, Experiment, TrialWithSegments } from "../../api/types";
import { downloadFrom } from "../../charts/save";
import { bytes, metric } from "../../format";
import { keys } from "../../live/keys";
import classes from "./Checkpoints.module.css";
import { lazily } from "../common/lazily";
import { ProblemBox } from "../common/Problem";
import { Loading } from "../common/Loading";
import { useMayChange } from "../common/useSession";

const ForkTrialDialog = lazily(() => import("../actions/ForkTrialDialog"));
const REFRESH_MS = 5000;

const STATE: Record<CheckpointItem["state"], string> = {
  uploading: "being saved",
  ready: "ready",
  deleted: "deleted by the policy",
};

/** The checkpoints of a trial, newest first: to download, to keep, and to start a new trial from. */
export function Checkpoints({ trial, experiment }: { trial: TrialWithSegments; experiment: Experiment }) {
  const [forking, setForking] = useState<string | null>(null);
  const [all, setAll] = useState(false);
  const query = useQuery({
    queryKey: keys.trialCheckpoints(trial.id),
    queryFn: ({ signal }) => api.checkpoints(trial.experiment_id, trial.number, signal),
    refetchInterval: REFRESH_MS, // also after the trial's end: others may pin one, and the policy may delete one
  });
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="list of checkpoints" retry={() => void query.refetch()} />;
  if (!query.data) return <Loading what="checkpoints" height={120} />;
  const kept = query.data.filter((one) => one.state !== "deleted");
  const gone = query.data.length - kept.length;
  const shown = all ? query.data : kept;
  return (
    <>
      {shown.length === 0 && (
        <p className={classes.none}>
          {gone > 0
            ? "All checkpoints were deleted."
            : "No checkpoint has been saved yet. A trial saves one if its function passes checkpoint= to tuner.report()."}
        </p>
      )}
      {shown.length > 0 && (
        <ul className={classes.list} aria-label="Checkpoints">
          {shown.map((one) => (
            <Row key={one.id} one={one} trial={trial} onFork={() => setForking(one.id)} />
          ))}
        </ul>
      )}
      {gone > 0 && (
        <Button size="compact-xs" variant="default" mt="xs" onClick={() => setAll(!all)}>
          {all ? "Hide deleted ones" : `Show ${gone} deleted ${gone === 1 ? "one" : "ones"}`}
        </Button>
      )}
      <Suspense>
        {forking !== null && (
          <ForkTrialDialog
            trial={trial}
            experiment={experiment}
            checkpoint={forking}
            onClose={() => setForking(null)}
          />
        )}
      </Suspense>
    </>
  );
}

interface RowProps {
  one: CheckpointItem;
  trial: TrialWithSegments;
  onFork: () => void;
}

function Row({ one, trial, onFork }: RowProps) {
  const client = useQueryClient();
  const key = keys.trialCheckpoints(trial.id);
  const pin = useMutation({
    mutationFn: () => api.pin(one.id, !one.pinned),
    onSuccess: (answer) =>
      client.setQueryData<CheckpointItem[]>(key, (old) => old?.map((each) => (each.id === answer.id ? answer : each))),
  });
  // For a refusal, as of files on another node, a browser shows only a download that failed, without the reason.
  const url = api.checkpointUrl(one.id);
  const download = useMutation({ mutationFn: () => api.tryDownload(one.id), onSuccess: () => downloadFrom(url) });
  const onDownload = (event: MouseEvent) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (!download.isPending) download.mutate();
  };
  const which = `iteration ${one.step}`;
  const allowed = new Set(useMayChange() ? one.actions : []);
  return (
    <li>
      <div>
        <b>Iteration {one.step}</b>
        <span>
          {bytes(one.bytes)} · segment {one.segment} · {STATE[one.state]}
          {one.pinned && " · pinned: the policy does not delete it"}
          {one.step === trial.best_iteration && (
            <>
              {" · "}
              <b>best value, {metric(trial.best_value)}</b>
            </>
          )}
        </span>
        <code title={one.uri}>{one.uri}</code>
        {pin.isError && <span role="alert">{pin.error.message}</span>}
        {download.isError && <span role="alert">{download.error.message}</span>}
      </div>
      <div className={classes.buttons}>
        {allowed.has("fork") && (
          <Button size="compact-xs" variant="default" aria-label={`Fork ${which}`} onClick={onFork}>
            Fork
          </Button>
        )}
        {(allowed.has("pin") || allowed.has("unpin")) && (
          <Button
            size="compact-xs"
            variant="default"
            aria-label={`${one.pinned ? "Unpin" : "Pin"} ${which}`}
            loading={pin.isPending}
            title={
              one.pinned
                ? "Unpin it, so that the policy may delete it"
                : "Pin it, so that the policy does not delete it"
            }
            onClick={() => pin.mutate()}
          >
            {one.pinned ? "Unpin" : "Pin"}
          </Button>
        )}
        {one.state === "ready" && (
          <Anchor size="xs" aria-label={`Download ${which}`} href={url} download onClick={onDownload}>
            Download
          </Anchor>
        )}
      </div>
    </li>
  );
}
