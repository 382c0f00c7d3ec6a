import { useMemo, type ReactNode } from "react";
import type { Experiment, Trial } from "../../api/types";
import { trialsCall } from "../../charts/copies";
import type { Dimension } from "../../charts/dimensions";
import { trialsRows } from "../../charts/save";
import { dotsOf, heatOf } from "../../charts/scatter";
import { ScatterChart, type Marking } from "../../charts/ScatterChart";
import { experimentEnded } from "../../live/states";
import { rankedOf, shareOfRank } from "../../curves/colours";
import type { Address } from "../../pages/useAddress";
import { counted, plural } from "../../format";
import { Panel } from "../common/Panel";
import { Select } from "../common/Select";
import classes from "../common/parts.module.css";
import { SaveMenu } from "../common/SaveMenu";
import { earlyWords } from "./Importance";
import { FinishedLegend } from "./FinishedLegend";

interface ContourPanelProps extends Marking {
  experiment: Experiment;
  trials: readonly Trial[];
  /** The most important parameter first. */
  dimensions: readonly Dimension[];
  where: readonly string[];
  address: Address;
  /** Chooses the objective, if there are several, and which trials to show. */
  choices?: ReactNode;
  /** The trials that are ranked, in words. */
  ranked: string;
}

/** Two parameters together: where good trials lie. */
export function ContourPanel(props: ContourPanelProps) {
  const { experiment, trials, dimensions, where, address, choices, ranked, ...marking } = props;
  const { rank, only } = marking;
  const [px, py] = [address.get("px"), address.get("py")];
  const { parameters, across, up } = useMemo(() => pairOf(dimensions, trials, px, py), [dimensions, trials, px, py]);
  const byNumber = useMemo(() => new Map(trials.map((trial) => [trial.number, trial])), [trials]);
  const dots = useMemo(
    () =>
      across && up
        ? dotsOf(
            trials.filter((trial) => rank.has(trial.number)),
            across,
            up,
          )
        : [],
    [trials, rank, across, up],
  );
  const heat = useMemo(() => {
    const shown = only ? dots.filter((dot) => only.has(dot.number)) : dots;
    return heatOf(shown, (number) => shareOfRank(rank.get(number), rankedOf(rank)), {
      columns: 48,
      rows: 30,
      categoriesAcross: across?.range ? null : (across?.categories.length ?? null),
      categoriesUp: up?.range ? null : (up?.categories.length ?? null),
    });
  }, [dots, rank, only, across, up]);
  if (!across || !up) return null;
  const choose = (key: string, label: string, value: string) => (
    <Select
      size="xs"
      w={210}
      aria-label={label}
      allowDeselect={false}
      data={parameters.map((one) => ({ value: one.id, label: one.label }))}
      value={value}
      onChange={(next) => address.set({ [key]: next })}
    />
  );
  return (
    <Panel
      title="Two parameters together"
      aside={
        <div className={classes.controls}>
          {choose("px", "Horizontal parameter", across.id)}
          {choose("py", "Vertical parameter", up.id)}
          {choices}
          <SaveMenu
            name={`${experiment.name} ${across.id} ${up.id}`}
            rows={() => trialsRows(trials, only)}
            call={trialsCall(experiment.id, where)}
          />
        </div>
      }
    >
      {dots.length === 0 ? (
        <div className={classes.empty} style={{ height: 160 }}>
          {experimentEnded(experiment.state) ? "No trial reported a value." : "Shown once trials have reported."}
        </div>
      ) : (
        <>
          <ScatterChart
            dots={dots}
            across={across}
            up={up}
            trials={byNumber}
            metric={counted(experiment)}
            labels={experiment.labels}
            heat={heat}
            height={340}
            label={`${plural(dots.length, "trial")} by ${across.label} and ${up.label}; the table has the numbers`}
            {...marking}
          />
          <FinishedLegend trials={trials} heat />
          <p className={classes.noShares}>
            Colors show the rank in {experiment.metric} among {ranked}. Between trials, they show the mean of nearby
            trials, whose other parameters differ. Places far from any trial stay empty.{" "}
            {earlyWords(experiment, trials)}
          </p>
        </>
      )}
    </Panel>
  );
}

/**
 * Return the parameters to choose from and the two to show: those named `px` and `py`, by default the most important ones. No trial
 * has parameters of two branches, so the second one is a parameter that some trial has together with the first.
 */
export function pairOf(
  dimensions: readonly Dimension[],
  trials: readonly Pick<Trial, "params">[],
  px: string | null,
  py: string | null,
) {
  const parameters = dimensions.filter((one) => !one.objective);
  const across = parameters.find((one) => one.id === px) ?? parameters[0];
  const others = parameters.filter((one) => one !== across);
  const together = ({ id }: Dimension) =>
    trials.some(({ params }) => [across!.id, id].every((one) => Object.hasOwn(params, one)));
  const up = parameters.find((one) => one.id === py) ?? others.find(together) ?? others[0];
  return { parameters, across, up };
}
