import { Anchor } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client";
import type { Decision, Experiment } from "../../api/types";
import { experimentEnded } from "../../live/states";
import { keys } from "../../live/useExperiment";
import classes from "../common/parts.module.css";

/** The words that the reason for a resume contains if the trial had trained, but has no checkpoint to continue from. */
export const STARTS_OVER = "starts from the beginning";

const REFRESH_MS = 30_000;
const MOST = 200;

/** Warn that trials were resumed from the beginning because they had no checkpoint. Show nothing if none was. */
export function StartedOver({
  experiment: { id, state, trials },
  onShow,
}: {
  experiment: Pick<Experiment, "id" | "state" | "trials">;
  onShow: () => void;
}) {
  const ended = experimentEnded(state);
  const { data } = useQuery({
    queryKey: [...keys.decisions(id), "started over"],
    queryFn: ({ signal }) => api.decisions(id, { kind: ["resume"], text: STARTS_OVER, page_size: MOST }, signal),
    enabled: trials > 0,
    refetchInterval: ended ? false : REFRESH_MS,
  });
  if (!data || data.items.length === 0) return null;
  const words = startedOverWords(data.items, data.next_page_token !== null);
  const they = words.startsWith("1 trial ") ? "it" : "they";
  return (
    <p className={classes.warning} role="status">
      <b>{words}</b>, because {they} had no checkpoint to continue from: {they} repeated training that was already done.{" "}
      {!ended && "Until such a trial has caught up, its iteration is lower than that of its best value. "}
      Next time, save checkpoints with <code>tuner.report(metrics, checkpoint=...)</code>, or use a scheduler that never
      resumes trials, such as <code>asha</code>.{" "}
      <Anchor component="button" type="button" size="sm" onClick={onShow}>
        Show these decisions
      </Anchor>
    </p>
  );
}

/** "8 trials started over, 12 times in all"; `more`: there are more decisions than `resumes` has. */
export function startedOverWords(resumes: readonly Pick<Decision, "trial_number">[], more = false): string {
  if (more) return `Trials started over more than ${resumes.length} times`;
  const trials = new Set(resumes.map((one) => one.trial_number)).size;
  const all = resumes.length > trials ? `, ${resumes.length} times in all` : "";
  return `${trials} ${trials === 1 ? "trial" : "trials"} started over${all}`;
}
