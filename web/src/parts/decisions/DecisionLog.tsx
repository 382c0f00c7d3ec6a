import { Anchor, Button } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useRef, useState, type CSSProperties, type KeyboardEvent } from "react";
import type { Decision, TrialState } from "../../api/types";
import { config, param } from "../../format";
import { usePrinting } from "../../print";
import { Clock } from "../common/Clock";
import { TONE } from "../common/StateBadge";
import { isShortcut } from "../common/useKeys";
import classes from "./DecisionLog.module.css";

interface DecisionLogProps {
  /** Undefined while they are being read. */
  decisions: readonly Decision[] | undefined;
  onSelect: (number: number) => void;
  /** The height of the scrolling box; without it, its parent scrolls. */
  height?: number;
  /** Make the box as high as the window allows. */
  tall?: boolean;
  /** True to show the reason on a line of its own. */
  narrow?: boolean;
  /** True if a decision can be opened to show the numbers behind it. */
  details?: boolean;
  /** Reads more; absent if all are shown. */
  onOlder?: () => Promise<void>;
}

/** The state that a decision leads to, which gives it its color. Other decisions are only bold. */
const LEADS_TO: Partial<Record<Decision["kind"], TrialState>> = {
  start: "running",
  resume: "running",
  pause: "paused",
  stop: "stopped",
  complete: "completed",
  fail: "failed",
  retry: "failed",
  cancel: "cancelled",
};

export function toneOf(kind: Decision["kind"]): string | undefined {
  const state = LEADS_TO[kind];
  return state && TONE[state];
}

/** On paper, a list has this many decisions, and a narrow one only the newest of them. */
const MOST_PRINTED = 500;
const NEWEST_PRINTED = 12;

const NO_DECISIONS: readonly Decision[] = [];

/** The log of decisions, newest first, each with its reason. */
export const DecisionLog = memo(function DecisionLog({
  decisions: read,
  onSelect,
  height,
  tall = false,
  narrow = false,
  details = false,
  onOlder,
}: DecisionLogProps) {
  const decisions = read ?? NO_DECISIONS;
  const scroll = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  const printing = usePrinting();
  const virtual = useVirtualizer({
    count: decisions.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => (narrow ? 48 : 30),
    overscan: 10,
    getItemKey: (index) => decisions[index]!.seq,
  });
  if (decisions.length === 0)
    return <p className={classes.none}>{read ? "No decisions yet." : "Reading the decisions…"}</p>;
  const inWindow = virtual.getVirtualItems();
  const printed = decisions.slice(0, narrow ? NEWEST_PRINTED : MOST_PRINTED);
  const items = printing ? printed.map(({ seq: key }, index) => ({ key, index })) : inWindow;
  const before = printing ? 0 : (inWindow[0]?.start ?? 0);
  const after = printing ? 0 : virtual.getTotalSize() - (inWindow[inWindow.length - 1]?.end ?? 0);
  const toggle = (seq: number) =>
    setOpen((old) => {
      const next = new Set(old);
      if (!next.delete(seq)) next.add(seq);
      return next;
    });
  const size: CSSProperties = printing
    ? {}
    : tall
      ? { maxHeight: "max(360px, calc(100dvh - 290px))" }
      : height === undefined
        ? { height: "100%" }
        : { maxHeight: height };
  return (
    <div
      ref={scroll}
      className={classes.scroll}
      data-narrow={narrow}
      style={size}
      tabIndex={0}
      role="region"
      aria-label="Decisions, newest first"
      onKeyDown={step}
    >
      {/* The rows are laid out in normal flow, so one that was measured before it had its final height leaves no gap. */}
      <ol style={{ paddingTop: before, paddingBottom: after }}>
        {items.map((item) => {
          const decision = decisions[item.index]!;
          const facts = details ? factsOf(decision) : [];
          return (
            <li key={item.key} ref={virtual.measureElement} data-index={item.index}>
              <Clock time={decision.time} before={decisions[item.index - 1]?.time} />
              <span className={classes.kind} data-kind={decision.kind} data-tone={toneOf(decision.kind)}>
                {decision.kind}
              </span>
              <span className={classes.trial}>
                {decision.trial_number !== null && (
                  <Anchor
                    component="button"
                    type="button"
                    size="xs"
                    tabIndex={-1}
                    onClick={() => onSelect(decision.trial_number!)}
                  >
                    trial {decision.trial_number}
                  </Anchor>
                )}
              </span>
              <span className={classes.reason}>
                {decision.reason}
                {decision.state === "pending" && <em> – not carried out yet</em>}
                {decision.state === "superseded" && <em> – replaced by a later decision</em>}
                {facts.length > 0 && (
                  <button
                    type="button"
                    className={classes.more}
                    tabIndex={-1}
                    aria-expanded={open.has(decision.seq)}
                    onClick={() => toggle(decision.seq)}
                  >
                    {open.has(decision.seq) ? "less" : "details"}
                  </button>
                )}
                {open.has(decision.seq) && (
                  <dl className={classes.facts}>
                    {facts.map(([name, value]) => (
                      <div key={name}>
                        <dt>{name}</dt>
                        <dd>{value}</dd>
                      </div>
                    ))}
                  </dl>
                )}
              </span>
            </li>
          );
        })}
      </ol>
      {onOlder && (
        <Button m="xs" size="compact-xs" variant="default" onClick={() => void onOlder()}>
          Older decisions
        </Button>
      )}
    </div>
  );
});

/** Move the focus through the buttons of a list, which is a single tab stop: hundreds of rows would be hundreds of stops. */
function step(event: KeyboardEvent<HTMLElement>): void {
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (by === undefined || isShortcut(event)) return;
  const buttons = [...event.currentTarget.querySelectorAll<HTMLElement>("li button")];
  const next = buttons[buttons.indexOf(document.activeElement as HTMLElement) + by];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** The numbers behind a decision, without those that its line already shows. */
export function factsOf(decision: Decision): [string, string][] {
  const found: [string, string][] = [];
  for (const [name, value] of Object.entries(decision.payload)) {
    if (name === "trial" || value === null || value === "" || value === false) continue;
    if (typeof value === "object" && !Array.isArray(value)) {
      if (Object.keys(value).length > 0) found.push([name, config(value as Record<string, unknown>)]);
    } else {
      found.push([name, param(value)]);
    }
  }
  return found;
}
