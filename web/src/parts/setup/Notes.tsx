import Markdown from "markdown-to-jsx/react";
import type { ReactNode } from "react";
import classes from "./Notes.module.css";

const OPTIONS = {
  // Anybody who may edit can write notes, so allow no HTML, only what Markdown produces.
  disableParsingRawHTML: true,
  forceBlock: true,
  wrapperProps: { className: classes.notes } as object,
  overrides: {
    a: Away,
    img: Picture,
    // Below the heading of the section that shows them.
    h1: { component: "h4" },
    h2: { component: "h5" },
    h3: { component: "h6" },
    h4: { component: "h6" },
    h5: { component: "h6" },
    table: Table,
  },
} as const;

/** The notes of an experiment, as Markdown. This module is loaded only if there are notes. */
export default function Notes({ text }: { text: string }) {
  return <Markdown options={OPTIONS}>{text}</Markdown>;
}

function Away({ href, title, children }: { href?: string; title?: string; children?: ReactNode }) {
  return (
    <a href={href} title={title} target="_blank" rel="noreferrer noopener">
      {children}
    </a>
  );
}

/** A link, since a picture from elsewhere would tell its server who reads the notes. */
function Picture({ src, alt }: { src?: string; alt?: string }) {
  return <Away {...(src ? { href: src } : {})}>{alt || src || "picture"}</Away>;
}

function Table({ children }: { children?: ReactNode }) {
  return (
    <div className={classes.scroll} tabIndex={0} role="region" aria-label="Table">
      <table>{children}</table>
    </div>
  );
}
