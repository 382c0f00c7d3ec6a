import { Popover } from "@mantine/core";
import { useState } from "react";
import { ROOT } from "../../api/root";
import { asCurl, asPython, type Call } from "../../charts/copies";
import classes from "./parts.module.css";
import { useCopy } from "./useCopy";
import { useSession } from "./useSession";

/** For the buttons of an open popover: with it, Escape closes only the popover, not also the drawer or dialog behind it. */
export const ESCAPE_ENDS_HERE = { "data-mantine-stop-propagation": "true" };

/** A button that copies a link to a view or its API call, for views that have nothing to save. */
export function CopyMenu({ call, link = true }: { call: Call; link?: boolean }) {
  return (
    <span className={classes.saves} role="group" aria-label="Copy a link or a call">
      <CopyButton call={call} link={link} />
    </span>
  );
}

/** `link`: false if the page's URL does not lead to what is shown. */
export function CopyButton({ call, link = true }: { call: Call; link?: boolean }) {
  const [opened, setOpened] = useState(false);
  return (
    <Popover opened={opened} onChange={setOpened} position="bottom-end" trapFocus>
      <Popover.Target>
        <button
          type="button"
          aria-haspopup="dialog"
          {...(opened ? ESCAPE_ENDS_HERE : {})}
          title={`Copy ${link ? "a link to this view, or " : ""}the API call for what it shows (Python, curl)`}
          onClick={() => setOpened(!opened)}
        >
          copy
        </button>
      </Popover.Target>
      <Popover.Dropdown p={4}>
        <Forms call={call} link={link} />
      </Popover.Dropdown>
    </Popover>
  );
}

/** What can be copied. It exists only while the popover is open: a page has many of these buttons. */
function Forms({ call, link }: { call: Call; link: boolean }) {
  const { copied, error, copy } = useCopy();
  const asks = useSession()?.required ?? false;
  const service = `${window.location.origin}${ROOT}`.replace(/\/$/, "");
  const forms: [string, () => string][] = [
    ...(link ? [["link", () => window.location.href] as [string, () => string]] : []),
    ["Python", () => asPython(call, service)],
    ["curl", () => asCurl(call, service, asks)],
  ];
  return (
    <div className={classes.copies} role="group" aria-label="Copy this view">
      {forms.map(([label, text]) => (
        <button key={label} type="button" {...ESCAPE_ENDS_HERE} onClick={() => void copy(label, text())}>
          {copied === label ? "copied" : `as ${label}`}
        </button>
      ))}
      {error && <span role="alert">{error}</span>}
    </div>
  );
}
