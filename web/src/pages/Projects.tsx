import { Anchor, NativeSelect, Skeleton, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { api } from "../api/client";
import type { Project } from "../api/types";
import { settingsCall } from "../charts/copies";
import { moment, number } from "../format";
import { CopyMenu } from "../parts/common/CopyMenu";
import { Panel } from "../parts/common/Panel";
import { ProblemBox } from "../parts/common/Problem";
import classes from "./SettingsPage.module.css";

/** The time after which a list of the settings is read again: others may have changed it. */
export const REFRESH_MS = 10_000;

const AUTO = "from earlier ones in the project";
const NONE = "nothing from earlier ones";

/** The projects with their settings, and the resources that their experiments have used and may hold. A click on one lists its experiments. */
export function Projects({ mayChange }: { mayChange: boolean }) {
  const projects = useQuery({
    queryKey: ["projects"],
    queryFn: ({ signal }) => api.projects(signal),
    refetchInterval: REFRESH_MS,
  });
  if (projects.isError && !projects.data)
    return <ProblemBox error={projects.error} what="list of projects" retry={() => void projects.refetch()} />;
  if (!projects.data) return <Skeleton height={120} />;
  const { items } = projects.data;
  return (
    <Panel flush title={`Projects · ${items.length}`} aside={<CopyMenu call={settingsCall("projects")} />}>
      {items.length === 0 ? (
        <p className={classes.none}>
          No projects yet. An experiment belongs to the project that its spec or its token names, or to{" "}
          <code>default</code>.
        </p>
      ) : (
        <div className={`${classes.scroll} sideways`} tabIndex={0} role="region" aria-label="Projects">
          <table className={classes.table} aria-label="Projects">
            <thead>
              <tr>
                <th scope="col">Project</th>
                <th scope="col">Experiments</th>
                <th scope="col" data-number="true">
                  GPU hours used
                </th>
                <th scope="col">Saved by early stopping</th>
                <th scope="col" data-number="true">
                  CPU hours used
                </th>
                <th scope="col">Quota</th>
                <th scope="col">Latest experiment</th>
                <th scope="col" title="The warm_start of new experiments whose spec has none">
                  New experiments learn
                </th>
              </tr>
            </thead>
            <tbody>
              {items.map((one) => (
                <tr key={one.name}>
                  <td>
                    <Anchor
                      component={Link}
                      to={`/experiments?project=${encodeURIComponent(one.name)}`}
                      size="sm"
                      title="List its experiments"
                    >
                      {one.name}
                    </Anchor>
                  </td>
                  <td>{experimentsWords(one)}</td>
                  <td data-number="true">{hours(one.gpu_hours)}</td>
                  <td>{one.gpu_hours_saved > 0 ? `${hours(one.gpu_hours_saved)} GPU hours` : "–"}</td>
                  <td data-number="true">{hours(one.cpu_hours)}</td>
                  <td>{quotaWords(one)}</td>
                  <td>{one.latest_at ? moment(one.latest_at) : "none"}</td>
                  <td>{mayChange ? <WarmStart project={one} /> : one.warm_start === "auto" ? AUTO : NONE}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

interface ProjectInputProps {
  /** The project to which the user is limited; null for all projects. */
  only: string | null;
  /** Whether the field must name a project. */
  required?: boolean;
  value: string;
  onChange: (value: string) => void;
}

/** The project of a new token or webhook. Somebody who is limited to a project has no choice. */
export function ProjectInput({ only, required = false, value, onChange }: ProjectInputProps) {
  return (
    <TextInput
      label="Project"
      w={150}
      placeholder={required ? "" : "all"}
      required={required && only === null}
      readOnly={only !== null}
      variant={only === null ? "default" : "filled"}
      value={only ?? value}
      onChange={(event) => onChange(event.currentTarget.value)}
    />
  );
}

/** Choose what new experiments of a project learn from if their specs do not say. */
function WarmStart({ project }: { project: Project }) {
  const client = useQueryClient();
  const change = useMutation({
    // A second choice waits for the first one. The control is not disabled meanwhile, since it would lose the focus.
    scope: { id: `warm start of ${project.name}` },
    mutationFn: (warm_start: Project["warm_start"]) => api.changeProject(project.name, { warm_start }),
    onSettled: () => {
      void client.invalidateQueries({ queryKey: ["audit"] });
      return client.invalidateQueries({ queryKey: ["projects"] });
    },
  });
  const shown = change.isPending ? change.variables : project.warm_start;
  return (
    <span className={classes.sure}>
      <NativeSelect
        size="xs"
        aria-label={`New experiments of ${project.name} learn`}
        value={shown ?? "none"}
        data={[
          { value: "none", label: NONE },
          { value: "auto", label: AUTO },
        ]}
        onChange={(event) => change.mutate(event.currentTarget.value === "auto" ? "auto" : null)}
      />
      {change.isError && <span role="alert">{change.error.message}</span>}
    </span>
  );
}

/** "12 (3 not ended, 2 archived)". */
export function experimentsWords({ experiments, running, archived }: Project): string {
  const parts = [...(running > 0 ? [`${running} not ended`] : []), ...(archived > 0 ? [`${archived} archived`] : [])];
  return parts.length > 0 ? `${experiments} (${parts.join(", ")})` : String(experiments);
}

/** "4 GPUs, 32 CPUs": what its trials may hold together. */
export function quotaWords({ quota }: Project): string {
  const parts = Object.entries(quota).map(
    ([name, amount]) => `${number(amount)} ${name}${amount !== 1 && (name === "GPU" || name === "CPU") ? "s" : ""}`,
  );
  return parts.length > 0 ? parts.join(", ") : "no limit";
}

function hours(value: number): string {
  return value > 0 && value < 0.01 ? "< 0.01" : value.toFixed(2);
}
