import { Modal } from "@mantine/core";
import { useState } from "react";
import classes from "./KeyHelp.module.css";
import { SEARCH_FIELD, useKeys } from "./useKeys";

const HELP: readonly (readonly [string, string])[] = [
  ["/", "go to the search field of this page"],
  ["j", "open the next trial of the table"],
  ["k", "open the previous trial of the table"],
  ["x", "pick the open trial, or unpick it"],
  ["c", "compare the picked trials"],
  ["l", "switch the vertical axis of the curves between linear and log"],
  ["+ − 0", "in a chart of curves: zoom in, zoom out, show everything"],
  ["Shift ←", "in a chart of curves: move the part that is shown, as with the other arrow keys"],
  ["Esc", "close the open trial, or this list"],
  ["?", "show this list"],
];

/** The keys that work on every page: `/` goes to its search field, `?` lists all keys. */
export function KeyHelp() {
  const [open, setOpen] = useState(false);
  useKeys({
    "?": () => setOpen(true),
    "/": () => document.querySelector<HTMLInputElement>(SEARCH_FIELD)?.focus(),
  });
  return (
    <Modal
      opened={open}
      onClose={() => setOpen(false)}
      onKeyDown={({ key }) => key === "?" && setOpen(false)}
      title={<b>Keys</b>}
      centered
    >
      <dl className={classes.keys}>
        {HELP.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Modal>
  );
}
