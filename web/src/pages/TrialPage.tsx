import { Anchor, Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { api, isMissing } from "../api/client";
import type { TrialWithSegments } from "../api/types";
import { Crumbs } from "../App";
import { frontsOf, pointsOf, ranksByFront } from "../charts/pareto";
import { rankedOf, ranks } from "../curves/colours";
import { expectedOf } from "../curves/expected";
import { keys, useExperiment } from "../live/useExperiment";
import { HeadingLevel } from "../parts/common/Heading";
import { Panel } from "../parts/common/Panel";
import { MissingPage } from "../parts/common/Problem";
import { TrialDetails, TrialTitle } from "../parts/trial/TrialDetails";
import { useTitle } from "../parts/common/useTitle";
import { useAddress } from "./useAddress";

/** One trial on a page of its own, to share or to keep open. */
export default function TrialPage() {
  const { id = "" } = useParams();
  const query = useQuery({ queryKey: keys.trial(id), queryFn: ({ signal }) => api.trial(id, signal) });
  useTitle(query.data ? `Trial ${query.data.number} · ${query.data.state}` : "Trial");
  if (query.data) return <Loaded key={query.data.experiment_id} trial={query.data} />;
  if (query.isError) return <MissingPage error={query.error} what="trial" retry={() => void query.refetch()} />;
  return <Skeleton height={400} />;
}

function Loaded({ trial }: { trial: TrialWithSegments }) {
  const live = useExperiment(trial.experiment_id);
  const navigate = useNavigate();
  const address = useAddress();
  const experiment = live.experiment.data;
  const sample = live.trials.data;
  const rank = useMemo((): ReadonlyMap<number, number> => {
    if (!sample || !experiment) return new Map();
    const { objectives, mode, best } = experiment;
    if (sample.places) return sample.places;
    return objectives.length > 1
      ? ranksByFront(frontsOf(pointsOf(sample.items, objectives), objectives))
      : ranks(sample.items, mode, expectedOf(best));
  }, [sample, experiment]);
  if (live.experiment.isError && (!experiment || isMissing(live.experiment.error)))
    return (
      <MissingPage
        error={live.experiment.error}
        what="experiment"
        shown={experiment?.name}
        retry={() => void live.experiment.refetch()}
      />
    );
  if (!experiment) return <Skeleton height={400} />;
  const open = (number: number) => {
    const other = sample?.items.find((one) => one.number === number);
    // The trial may be one of very many that are not loaded. The experiment's page finds it.
    void navigate(other ? `/trials/${other.id}` : `/experiments/${trial.experiment_id}?trial=${number}`);
  };
  const to = `/experiments/${experiment.id}`;
  return (
    <div style={{ maxWidth: 860, margin: "0 auto" }}>
      <Crumbs
        items={[
          { label: "Experiments", to: "/experiments" },
          { label: experiment.name, to },
          { label: `trial ${trial.number}` },
        ]}
      />
      <div
        style={{
          display: "flex",
          flexWrap: "wrap",
          justifyContent: "space-between",
          alignItems: "center",
          gap: "4px 16px",
          margin: "4px 0 12px",
        }}
      >
        <TrialTitle trial={trial} experiment={experiment} address={address}>
          <h1 style={{ margin: 0, fontSize: 20 }}>Trial {trial.number}</h1>
        </TrialTitle>
        <Anchor component={Link} to={`${to}?trial=${trial.number}`} size="sm">
          Show in the experiment
        </Anchor>
      </div>
      <Panel>
        <HeadingLevel value={2}>
          <TrialDetails
            key={trial.id}
            id={trial.id}
            experiment={experiment}
            rank={rank.get(trial.number)}
            of={rankedOf(rank)}
            onSelect={open}
            address={address}
          />
        </HeadingLevel>
      </Panel>
    </div>
  );
}
