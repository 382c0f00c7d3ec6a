import { Anchor, Button } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useRef } from "react";
import type { Decision } from "../api/types";
import { clock, moment } from "../format";
import classes from "./DecisionLog.module.css";

interface DecisionLogProps {
  decisions: readonly Decision[];
  onSelect: (number: number) => void;
  /** Of the scrolling box; without it, its own parent scrolls. */
  height?: number;
  /** The reason on a line of its own. */
  narrow?: boolean;
  /** Reads more; absent where all are shown. */
  onOlder?: () => Promise<void>;
}

/** What was decided, newest first, each with its reason. */
export function DecisionLog({ decisions, onSelect, height, narrow = false, onOlder }: DecisionLogProps) {
  const scroll = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: decisions.length, getScrollElement: () => scroll.current, estimateSize: () => (narrow ? 48 : 30), overscan: 10,
    getItemKey: (index) => decisions[index]!.seq,
  });
  if (decisions.length === 0) return <p className={classes.none}>Nothing has been decided yet.</p>;
  return (
    <div ref={scroll} className={classes.scroll} data-narrow={narrow} style={height === undefined ? { height: "100%" } : { maxHeight: height }} tabIndex={0} role="region" aria-label="Decisions, newest first">
      <ol style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const decision = decisions[item.index]!;
          return (
            <li key={item.key} ref={virtual.measureElement} data-index={item.index} style={{ transform: `translateY(${item.start}px)` }}>
              <time dateTime={decision.time} title={moment(decision.time)}>{clock(decision.time)}</time>
              <span className={classes.kind} data-kind={decision.kind}>{decision.kind}</span>
              <span className={classes.trial}>
                {decision.trial_number !== null && (
                  <Anchor component="button" type="button" size="xs" onClick={() => onSelect(decision.trial_number!)}>trial {decision.trial_number}</Anchor>
                )}
              </span>
              <span className={classes.reason}>
                {decision.reason}
                {decision.state === "pending" && <em> – not carried out yet</em>}
                {decision.state === "superseded" && <em> – another decision took its place</em>}
              </span>
            </li>
          );
        })}
      </ol>
      {onOlder && <Button m="xs" size="compact-xs" variant="default" onClick={() => void onOlder()}>Older decisions</Button>}
    </div>
  );
}
