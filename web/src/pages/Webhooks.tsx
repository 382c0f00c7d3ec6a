import { Button, Skeleton, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, isForbidden, type NewWebhook } from "../api/client";
import type { Webhook } from "../api/types";
import { moment } from "../format";
import { Select } from "../parts/common/Select";
import { Snippet } from "../parts/experiments/FirstExperiment";
import { Mistakes } from "../parts/common/Mistakes";
import { settingsCall } from "../charts/copies";
import { CopyMenu } from "../parts/common/CopyMenu";
import { NumberField } from "../parts/common/NumberField";
import { Panel } from "../parts/common/Panel";
import parts from "../parts/common/parts.module.css";
import { useFirstPress } from "../parts/common/useFirstPress";
import { ProblemBox } from "../parts/common/Problem";
import { ProjectInput, REFRESH_MS } from "./Projects";
import classes from "./SettingsPage.module.css";

type EventName = Webhook["events"][number];

const EVENTS: Record<EventName, string> = {
  "experiment.started": "starts",
  "experiment.paused": "is paused",
  "experiment.completed": "is completed",
  "experiment.failed": "fails",
  "experiment.cancelled": "is cancelled",
  "trial.failed": "has a failed trial",
  "objective.reached": "reaches a value",
};
const NAMES = Object.keys(EVENTS) as EventName[];

interface WebhooksProps {
  /** Whether the user may have webhooks for all projects. */
  all: boolean;
  /** The project to which the user is limited; null for all projects. */
  only: string | null;
}

/** Show the webhooks, and say whether their messages arrived. */
export function Webhooks({ all, only }: WebhooksProps) {
  const query = useQuery({
    queryKey: ["webhooks"],
    queryFn: ({ signal }) => api.webhooks(signal),
    retry: false,
    refetchInterval: ({ state }) => (isForbidden(state.error) ? false : REFRESH_MS),
  });
  if (isForbidden(query.error)) return null;
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="list of webhooks" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={120} />;
  const { items } = query.data;
  return (
    <>
      <Panel flush title={`Webhooks · ${items.length}`} aside={<CopyMenu call={settingsCall("webhooks")} />}>
        {items.length === 0 ? (
          <p className={classes.none}>
            No webhooks yet. A webhook sends a message to a URL, or to Slack, when an experiment ends or fails.
          </p>
        ) : (
          <div className={`${classes.scroll} sideways`} tabIndex={0} role="region" aria-label="Webhooks">
            <table className={classes.table} aria-label="Webhooks">
              <thead>
                <tr>
                  <th scope="col">Address</th>
                  <th scope="col">When an experiment</th>
                  <th scope="col">Of</th>
                  <th scope="col">Format</th>
                  <th scope="col">
                    <span className={classes.hidden}>Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {items.map((one) => (
                  <Row key={one.id} one={one} />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Panel>
      <NewOne all={all} only={only} />
    </>
  );
}

function Row({ one }: { one: Webhook }) {
  const client = useQueryClient();
  const [sure, setSure] = useState(false);
  const [open, setOpen] = useState(false);
  const remove = useMutation({
    mutationFn: () => api.deleteWebhook(one.id),
    onSettled: () => {
      // Somebody else may have deleted it meanwhile.
      void client.invalidateQueries({ queryKey: ["webhooks"], exact: true });
      void client.invalidateQueries({ queryKey: ["audit"] });
    },
  });
  const removeOnce = useFirstPress(remove.isPending, remove.mutate);
  return (
    <>
      <tr>
        <td className={classes.long}>{one.url}</td>
        <td className={classes.long}>
          {one.events.map((name) => EVENTS[name]).join(", ")}
          {one.threshold !== null && ` (${one.threshold})`}
        </td>
        <td>{one.experiment_id ?? (one.project ? `project ${one.project}` : "all projects")}</td>
        <td>{one.format}</td>
        <td>
          <span className={classes.sure}>
            <Button
              size="compact-xs"
              variant="default"
              aria-expanded={open}
              aria-label={`${open ? "Hide messages" : "Messages"} of ${one.url}`}
              onClick={() => setOpen(!open)}
            >
              {open ? "Hide messages" : "Messages"}
            </Button>
            {/* With an element of their own, the focus goes to the button that takes the place of the one that was pressed. */}
            <span className={classes.sure}>
              {sure ? (
                <>
                  <Button
                    size="compact-xs"
                    color="red"
                    aria-label={`Delete permanently ${one.url}`}
                    loading={remove.isPending}
                    onClick={removeOnce}
                  >
                    Delete permanently
                  </Button>
                  <Button size="compact-xs" variant="default" onClick={() => setSure(false)}>
                    Keep it
                  </Button>
                </>
              ) : (
                <Button
                  size="compact-xs"
                  variant="default"
                  aria-label={`Delete ${one.url}`}
                  onClick={() => setSure(true)}
                >
                  Delete
                </Button>
              )}
            </span>
            {remove.isError && <span role="alert">{remove.error.message}</span>}
          </span>
        </td>
      </tr>
      {open && (
        <tr>
          <td colSpan={5}>
            <Deliveries id={one.id} />
          </td>
        </tr>
      )}
    </>
  );
}

const STATE = { pending: "pending", delivered: "delivered", failed: "failed" } as const;

function Deliveries({ id }: { id: string }) {
  const query = useQuery({
    queryKey: ["webhooks", id, "deliveries"],
    queryFn: ({ signal }) => api.deliveries(id, signal),
    refetchInterval: 5000,
  });
  if (query.isError && !query.data)
    return <ProblemBox error={query.error} what="list of messages" retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton height={40} />;
  if (query.data.items.length === 0) return <>Nothing has been sent yet.</>;
  return (
    <>
      <ul className={classes.messages}>
        {query.data.items.map((one) => (
          <li key={one.id}>
            {moment(one.created_at)}: {one.event} of {one.experiment_id}, {STATE[one.state]}
            {one.attempts > 1 && ` after ${one.attempts} attempts`}
            {one.last_error && `: ${one.last_error}`}
          </li>
        ))}
      </ul>
      {query.data.next_page_token !== null &&
        `These are the newest ${query.data.items.length}. The API lists the older ones: /api/v1/webhooks/${id}/deliveries`}
    </>
  );
}

function NewOne({ all, only }: WebhooksProps) {
  const client = useQueryClient();
  const [url, setUrl] = useState("");
  const [project, setProject] = useState("");
  const [events, setEvents] = useState<readonly EventName[]>(["experiment.completed", "experiment.failed"]);
  const [format, setFormat] = useState<NewWebhook["format"]>("json");
  const [threshold, setThreshold] = useState<number | "">("");
  const reaches = events.includes("objective.reached");
  const create = useMutation({
    mutationFn: () =>
      api.createWebhook({
        url: url.trim(),
        events: [...events],
        format,
        project: project.trim() || null,
        threshold: reaches && threshold !== "" ? threshold : null,
      }),
    onSuccess: () => {
      setUrl("");
      void client.invalidateQueries({ queryKey: ["webhooks"], exact: true });
      void client.invalidateQueries({ queryKey: ["audit"] });
    },
  });
  const send = useFirstPress(create.isPending, create.mutate);
  const toggle = (name: EventName) =>
    setEvents(NAMES.filter((one) => (one === name ? !events.includes(one) : events.includes(one))));
  return (
    <Panel title="New webhook">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <div className={classes.form}>
          <TextInput
            label="Address"
            placeholder="https://example.com/hook"
            required
            w={320}
            value={url}
            onChange={(event) => setUrl(event.currentTarget.value)}
          />
          <ProjectInput only={only} required={!all} value={project} onChange={setProject} />
          <Select
            label="Format"
            allowDeselect={false}
            w={200}
            data={[
              { value: "json", label: "JSON, signed" },
              { value: "slack", label: "Slack" },
            ]}
            value={format}
            onChange={(value) => setFormat(value === "slack" ? "slack" : "json")}
          />
          {reaches && <NumberField label="Threshold" value={threshold} onChange={setThreshold} />}
        </div>
        <div
          className={parts.chips}
          role="group"
          aria-label="Send a message when an experiment"
          style={{ margin: "10px 0" }}
        >
          <span className={classes.lead}>Send a message when an experiment</span>
          {NAMES.map((name) => (
            <button type="button" key={name} aria-pressed={events.includes(name)} onClick={() => toggle(name)}>
              {EVENTS[name]}
            </button>
          ))}
        </div>
        {create.isError && <Mistakes error={create.error} title="It could not be created" />}
        <Button type="submit" mt="xs" loading={create.isPending} disabled={!url.trim() || events.length === 0}>
          Create the webhook
        </Button>
      </form>
      {create.data?.secret && (
        <div role="status">
          <p className={classes.words}>The key that signs its messages. Copy it now: it cannot be shown again.</p>
          <Snippet text={create.data.secret} />
        </div>
      )}
    </Panel>
  );
}
