import { useMemo, useRef, useState } from "react";
import { boxesOf, callsOf, hue, place, type Call, type Frame, type Part } from "./flame";
import classes from "./flame.module.css";
import { isShortcut } from "../parts/common/useKeys";

const ROW = 18;

interface FlameGraphProps {
  frames: readonly Frame[];
  part: Part;
  /** Formats a weight, such as seconds or bytes. */
  say: (weight: number) => string;
}

/**
 * Draw callers above and calls below, each as wide as its share of the time or memory. A click on a box widens it. With
 * the keyboard, the arrow keys move to callers, calls and neighbors, and Enter widens a box.
 */
export function FlameGraph({ frames, part, say }: FlameGraphProps) {
  const root = useMemo(() => callsOf(frames, part), [frames, part]);
  const [opened, setOpened] = useState(root);
  const [at, setAt] = useState(root);
  const [pointed, setPointed] = useState<Call | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const boxes = useMemo(() => boxesOf(opened), [opened]);
  if (root.weight === 0) return <p className={classes.words}>Nothing was recorded.</p>;

  const focused = boxes.some(({ call }) => call === at) ? at : opened;
  const go = (to: Call | undefined | null) => {
    const index = boxes.findIndex(({ call }) => call === to);
    if (!to || index < 0) return;
    setAt(to);
    box.current?.querySelectorAll<HTMLElement>("[role=treeitem]")[index]?.focus();
  };
  const open = (call: Call) => {
    setOpened(call);
    setAt(call);
  };
  const onKey = (event: React.KeyboardEvent) => {
    const siblings = focused.parent?.calls ?? [];
    const own = siblings.indexOf(focused);
    const moves: Record<string, () => void> = {
      ArrowDown: () => go(focused.calls[0]),
      ArrowUp: () => go(focused.parent),
      ArrowRight: () => go(siblings[own + 1]),
      ArrowLeft: () => go(siblings[own - 1]),
      Enter: () => open(focused),
      Home: () => open(root),
    };
    const move = moves[event.key];
    if (!move || isShortcut(event)) return;
    event.preventDefault();
    event.stopPropagation(); // the arrow keys would scroll
    move();
  };
  const words = (call: Call) => {
    const what = call.frame ? [call.frame.name, place(call.frame)].filter(Boolean).join(" · ") : part.name;
    return `${what}: ${say(call.weight)}, ${((100 * call.weight) / root.weight).toFixed(1)} %`;
  };
  const depth = boxes.reduce((most, one) => Math.max(most, one.depth), 0) + 1;
  const above = boxes.findIndex(({ call }) => call === opened);
  const shown = pointed ?? focused;
  return (
    <div className={classes.graph}>
      <div className={classes.scroll}>
        <div
          ref={box}
          role="tree"
          aria-label={`Flame graph of ${part.name}`}
          className={classes.boxes}
          style={{ height: depth * ROW }}
          onKeyDown={onKey}
          onMouseLeave={() => setPointed(null)}
        >
          {boxes.map(({ call, depth: level, left, width }, i) => (
            <div
              key={i}
              role="treeitem"
              aria-level={level + 1}
              aria-label={words(call)}
              aria-selected={call === opened}
              tabIndex={call === focused ? 0 : -1}
              title={call.frame?.file ? `${words(call)}\n${call.frame.file}:${call.frame.line}` : words(call)}
              className={classes.box}
              data-place={call.frame ? place(call.frame) : undefined}
              data-above={level < above}
              style={{
                top: level * ROW,
                left: `${100 * left}%`,
                width: `${100 * width}%`,
                background: call.frame?.file ? `hsl(${hue(call.frame.file)} 62% 80%)` : undefined,
              }}
              onClick={() => open(call)}
              onFocus={() => setAt(call)}
              onMouseEnter={() => setPointed(call)}
            >
              {call.frame ? call.frame.name : part.name}
            </div>
          ))}
        </div>
      </div>
      <p className={classes.words} aria-hidden="true">
        {words(shown)}
      </p>
      {opened !== root && (
        <button type="button" className={classes.back} onClick={() => open(root)}>
          Show everything
        </button>
      )}
    </div>
  );
}
