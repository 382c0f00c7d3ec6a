import { Button, TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { useInfiniteQuery } from "@tanstack/react-query";
import { all, api, from, PAGE } from "../../api/client";
import type { Decision, DecisionKind, Experiment } from "../../api/types";
import { decisionsCall } from "../../charts/copies";
import type { Rows } from "../../charts/save";
import { experimentEnded } from "../../live/states";
import { keys } from "../../live/useExperiment";
import type { Address } from "../../pages/useAddress";
import { DecisionLog } from "./DecisionLog";
import { chosenTrial, KindChips, TrialFilter } from "../trial/LogFilters";
import { Panel } from "../common/Panel";
import classes from "../common/parts.module.css";
import { ProblemBox } from "../common/Problem";
import { SaveMenu } from "../common/SaveMenu";
import { Loading } from "../common/Loading";
import { useMayChange } from "../common/useSession";
import { useTyped } from "../common/useTyped";
import { WhatIf } from "./WhatIf";

export const KINDS = [
  "start",
  "resume",
  "pause",
  "stop",
  "complete",
  "exploit",
  "resize",
  "retry",
  "fail",
  "cancel",
  "note",
  "finish",
] as const satisfies readonly DecisionKind[];
const REFRESH_MS = 3000;
/** The maximum number of letters that the service searches for. */
const LONGEST_TEXT = 200;

/** Decisions as rows of a CSV file. */
function decisionRows(decisions: readonly Decision[]): Rows {
  return [
    ["seq", "time", "kind", "trial", "reason", "state"],
    ...decisions.map((one) => [one.seq, one.time, one.kind, one.trial_number, one.reason, one.state]),
  ];
}

export function parseKinds(text: string | null): DecisionKind[] {
  const asked = new Set((text ?? "").split(","));
  return KINDS.filter((kind) => asked.has(kind));
}

/** Every decision with its reason and its numbers, filtered by the service. */
export default function DecisionsTab({
  experiment,
  address,
  onSelect,
}: {
  experiment: Experiment;
  address: Address;
  onSelect: (number: number) => void;
}) {
  const kinds = parseKinds(address.get("kind"));
  const text = (address.get("q") ?? "").slice(0, LONGEST_TEXT);
  const trial = chosenTrial(address);
  const find = useDebouncedCallback((value: string) => address.set({ q: value.trim() }), 250);
  const typed = useTyped(text, (value) => {
    find(value);
    return value;
  });
  const wanted = { kind: kinds, ...(text && { text }), ...(trial !== undefined && { trial }) };
  const query = useInfiniteQuery({
    queryKey: [...keys.decisions(experiment.id), "found", kinds.join(), text, trial ?? null],
    queryFn: ({ pageParam, signal }) =>
      api.decisions(experiment.id, { ...wanted, page_size: 200, ...(pageParam && { page_token: pageParam }) }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_page_token ?? undefined,
    refetchInterval: experimentEnded(experiment.state) ? false : REFRESH_MS,
    placeholderData: (old) => old,
  });
  const decisions = query.data?.pages.flatMap((page) => page.items) ?? [];
  const everyDecision = () =>
    query.hasNextPage
      ? all((token) => api.decisions(experiment.id, { ...wanted, page_size: PAGE, ...from(token) }))
      : decisions;
  const mayChange = useMayChange(); // the service replays experiments only for those who may
  const filtered = kinds.length > 0 || text !== "" || trial !== undefined;
  const showAll = () => address.set({ kind: null, q: null, of: null });
  return (
    <>
      {mayChange && <WhatIf experiment={experiment} onSelect={onSelect} address={address} />}
      <Panel
        flush
        title="Decisions"
        aside={
          <div className={classes.filterRow}>
            <KindChips
              kinds={KINDS}
              chosen={kinds}
              onChange={(change) => address.set((get) => ({ kind: change(parseKinds(get("kind"))).join(",") }))}
            />
            <TrialFilter address={address} />
            <TextInput
              size="xs"
              w={190}
              maxLength={LONGEST_TEXT}
              placeholder="Search the reasons"
              aria-label="Search the reasons"
              data-search
              {...typed}
            />
            <SaveMenu
              name={`${experiment.name} decisions`}
              picture={false}
              rows={async () => decisionRows(await everyDecision())}
              call={decisionsCall(experiment.id, { kind: kinds, text, trial })}
            />
          </div>
        }
      >
        {query.isError && !query.data && (
          <ProblemBox error={query.error} what="list of decisions" retry={() => void query.refetch()} />
        )}
        {query.isLoading && <Loading what="decisions" height={240} />}
        {query.data && (decisions.length > 0 || !filtered) && (
          <DecisionLog
            decisions={decisions}
            onSelect={onSelect}
            tall
            details
            {...(query.hasNextPage && { onOlder: async () => void (await query.fetchNextPage()) })}
          />
        )}
        {query.data && decisions.length === 0 && filtered && (
          <p className={classes.none}>
            No decision matches.{" "}
            <Button size="compact-xs" variant="default" onClick={showAll}>
              Show all
            </Button>
          </p>
        )}
      </Panel>
    </>
  );
}
