import { useComputedColorScheme } from "@mantine/core";
import { useCallback, useMemo, type ReactNode } from "react";
import type { Experiment, Trial } from "../../api/types";
import { LaneChart } from "../../charts/LaneChart";
import { curvesCall } from "../../charts/copies";
import { isLog } from "../../charts/dimensions";
import { lanesOf, shadesOfParam, shadesOfScores, shareOfTrial } from "../../charts/lanes";
import { paramName, readable } from "../../format";
import { curvesRows } from "../../charts/save";
import { STEP } from "../../curves/across";
import { colourAt } from "../../curves/colours";
import { useCurves, useSources, withEveryReport, type LiveExperiment } from "../../live/useExperiment";
import type { Address } from "../../pages/useAddress";
import { Panel } from "../common/Panel";
import { Select } from "../common/Select";
import classes from "../common/parts.module.css";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";
import { Loading } from "../common/Loading";

interface LineageTabProps {
  experiment: Experiment;
  live: LiveExperiment;
  rank: ReadonlyMap<number, number>;
  selected: number | null;
  onSelect: (number: number) => void;
  address: Address;
  /** The table of the trials, with dots in these colors; without it, they are colored by rank. */
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
  const shade = `${address.get("shade") ?? ""}`;
  const by = params.includes(shade) ? shade : null;
  const shades = useMemo(() => {
    if (!lanes) return null;
    return by === null ? shadesOfScores(lanes.pieces, mode) : shadesOfParam(lanes.pieces, by, isLog(space, by));
  }, [lanes, by, mode, space]);
  const colourOf = useCallback(
    (trial: Trial) => {
      const share = shades && shareOfTrial(shades, trial);
      return share === null ? null : colourAt(share, theme);
    },
    [shades, theme],
  );
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
                aria-label="Color by"
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
                rows={async () => curvesRows(await withEveryReport(experiment, curves.data), null)}
                call={curvesCall(experiment.id, experiment.metric, STEP)}
              />
            </div>
          )
        }
      >
        {curves.isError && !curves.data && (
          <ProblemBox error={curves.error} what="curves" retry={() => void curves.refetch()} />
        )}
        {curves.isLoading && <Loading what="curves" height={240} />}
        {lanes &&
          shades &&
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
      {table(shades ? colourOf : undefined)}
    </>
  );
}
