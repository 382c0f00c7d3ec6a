import { Select, Skeleton, useComputedColorScheme } from "@mantine/core";
import { useMemo, type ReactNode } from "react";
import type { Experiment, Trial } from "../../api/types";
import { LaneChart } from "../../charts/LaneChart";
import { curvesCall } from "../../charts/copies";
import { isLog } from "../../charts/dimensions";
import { lanesOf, shadesOfParam, shadesOfScores, shareOfTrial } from "../../charts/lanes";
import { paramName, readable } from "../../format";
import { curvesRows } from "../../charts/save";
import { STEP } from "../../curves/across";
import { colourAt } from "../../curves/colours";
import { useCurves, useSources, type LiveExperiment } from "../../live/useExperiment";
import type { Address } from "../../pages/useAddress";
import { Panel } from "../common/Panel";
import classes from "../common/parts.module.css";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";

interface LineageTabProps {
  experiment: Experiment;
  live: LiveExperiment;
  rank: ReadonlyMap<number, number>;
  selected: number | null;
  onSelect: (number: number) => void;
  address: Address;
  /** The table of the trials, with dots in these colours; without it, they are coloured by rank. */
  table: (colourOf?: (trial: Trial) => string | null) => ReactNode;
}

/** Show the population over time: whose weights each member took over, and how good it was. */
export default function LineageTab({ experiment, live, rank, selected, onSelect, address, table }: LineageTabProps) {
  const theme = useComputedColorScheme("light");
  const curves = useCurves(live, experiment.metric, STEP);
  const { segments, source } = useSources(live, true);
  const { labels, mode, space } = experiment;
  const lanes = useMemo(() => {
    const worded = segments.map((one) => ({ ...one, params: readable(one.params, labels) }));
    return curves.data && lanesOf(curves.data, source, rank, worded);
  }, [curves.data, source, rank, segments, labels]);
  const params = [...new Set(segments.flatMap((one) => Object.keys(one.params)))].sort();
  const by = params.find((one) => one === address.get("shade")) ?? null;
  const pieces = lanes?.pieces ?? [];
  const shades = by === null ? shadesOfScores(pieces, mode) : shadesOfParam(pieces, by, isLog(space, by));
  const colourOf = (trial: Trial) => {
    const share = shareOfTrial(shades, trial);
    return share === null ? null : colourAt(share, theme);
  };
  return (
    <>
      <Panel
        title="Lineage of the population"
        aside={
          curves.data && (
            <div className={classes.controls}>
              <Select
                size="xs"
                w={150}
                aria-label="Colours show"
                allowDeselect={false}
                data={[
                  { value: "", label: `${experiment.metric}` },
                  ...params.map((value) => ({ value, label: paramName(value, experiment.labels) })),
                ]}
                value={by ?? ""}
                onChange={(next) => address.set({ shade: next })}
              />
              <SaveMenu
                name={`${experiment.name} lineage`}
                rows={() => curvesRows(curves.data, null)}
                call={curvesCall(experiment.id, experiment.metric, STEP)}
              />
            </div>
          )
        }
      >
        {curves.isError && !curves.data && (
          <ProblemBox error={curves.error} what="curves" retry={() => void curves.refetch()} />
        )}
        {curves.isLoading && <Skeleton height={240} />}
        {lanes &&
          (lanes.order.length > 0 ? (
            <LaneChart
              lanes={lanes}
              source={source}
              metric={experiment.metric}
              labels={labels}
              shades={shades}
              by={by}
              selected={selected}
              onSelect={onSelect}
            />
          ) : (
            <div className={classes.empty} style={{ height: 160 }}>
              No member has reported yet.
            </div>
          ))}
      </Panel>
      {table(lanes ? colourOf : undefined)}
    </>
  );
}
