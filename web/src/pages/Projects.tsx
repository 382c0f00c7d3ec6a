import { Anchor, Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { api } from "../api/client";
import type { Project } from "../api/types";
import { settingsCall } from "../charts/copies";
import { moment, number } from "../format";
import { CopyMenu } from "../parts/common/CopyMenu";
import { Panel } from "../parts/common/Panel";
import { ProblemBox } from "../parts/common/Problem";
import classes from "./SettingsPage.module.css";

/** The projects, with what their experiments have used and may hold. A click on one lists its experiments. */
export function Projects() {
  const projects = useQuery({ queryKey: ["projects"], queryFn: ({ signal }) => api.projects(signal) });
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
          <table className={classes.table}>
            <thead>
              <tr>
                <th scope="col">Project</th>
                <th scope="col">Experiments</th>
                <th scope="col">GPU hours used</th>
                <th scope="col">Saved by early stopping</th>
                <th scope="col">CPU hours used</th>
                <th scope="col">Quota</th>
                <th scope="col">Latest experiment</th>
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
                  <td>{hours(one.gpu_hours)}</td>
                  <td>{one.gpu_hours_saved > 0 ? `${hours(one.gpu_hours_saved)} GPU hours` : "–"}</td>
                  <td>{hours(one.cpu_hours)}</td>
                  <td>{quotaWords(one)}</td>
                  <td>{one.latest_at ? moment(one.latest_at) : "none"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

/** "12 (3 running or paused, 2 archived)". */
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
