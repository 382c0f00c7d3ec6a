import { Button, TextInput } from "@mantine/core";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { plural } from "../../format";
import { keys } from "../../live/keys";
import { experimentEnded } from "../../live/states";
import classes from "./DriverLog.module.css";
import { Panel } from "../common/Panel";
import { ProblemBox } from "../common/Problem";

const REFRESH_MS = 5000;

/** The driver host's own log of an experiment: which segment waits, where it runs, how it ended, what failed. */
export default function DriverLog({ experiment }: { experiment: Experiment }) {
  const [open, setOpen] = useState(false);
  const [search, setSearch] = useState("");
  const query = useQuery({
    queryKey: [...keys.experiment(experiment.id), "driver-log", search],
    queryFn: ({ signal }) => api.driverLog(experiment.id, search, signal),
    enabled: open,
    placeholderData: keepPreviousData,
    refetchInterval: experimentEnded(experiment.state) ? false : REFRESH_MS,
  });
  const toggle = (
    <Button size="compact-xs" variant="default" aria-expanded={open} onClick={() => setOpen(!open)}>
      {open ? "Hide" : "Show"}
    </Button>
  );
  return (
    <Panel title="Driver's log" aside={toggle}>
      {!open && <p className={classes.note}>What the driver of this experiment has logged, for troubleshooting.</p>}
      {open && (
        <>
          <TextInput
            size="xs"
            mb="xs"
            maxLength={1000}
            aria-label="Search in the driver's log"
            placeholder="Search"
            data-search
            value={search}
            onChange={(event) => setSearch(event.currentTarget.value)}
          />
          {query.isError && <ProblemBox error={query.error} what="driver's log" retry={() => void query.refetch()} />}
          {query.data && (
            <>
              <pre className={classes.text} tabIndex={0} aria-label="The driver's log">
                {query.data.text || "Nothing."}
              </pre>
              <p className={classes.note}>
                {query.data.path}
                {query.data.left_out > 0 &&
                  ` · ${plural(query.data.left_out, "earlier line")} ${query.data.left_out === 1 ? "is" : "are"} not shown`}
              </p>
            </>
          )}
        </>
      )}
    </Panel>
  );
}
