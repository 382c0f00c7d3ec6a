import type { ReactNode } from "react";
import { Breakable } from "./Breakable";
import classes from "./parts.module.css";

interface PanelProps {
  title?: ReactNode;
  aside?: ReactNode;
  children: ReactNode;
  /** Leave out the padding around the content. */
  flush?: boolean;
  /** Take the height that is left in a column; the content scrolls. */
  fill?: boolean;
}

/** A titled box of the page. */
export function Panel({ title, aside, children, flush, fill }: PanelProps) {
  return (
    <section className={classes.panel} data-fill={fill}>
      {(title || aside) && (
        <header className={classes.panelHead}>
          <h2>{title}</h2>
          {aside}
        </header>
      )}
      <div className={flush ? undefined : classes.panelBody}>{children}</div>
    </section>
  );
}

/** A list of names and values. With `scroll`, its name, it scrolls within a box and can be focused. */
export function Facts({ items, scroll }: { items: [string, ReactNode][]; scroll?: string | undefined }) {
  return (
    <dl
      className={`${classes.facts} ${scroll ? "upAndDown" : ""}`}
      data-scroll={scroll && true}
      tabIndex={scroll ? 0 : undefined}
      aria-label={scroll}
    >
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>
            <Breakable name={name} words />
          </dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
