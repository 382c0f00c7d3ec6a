import { Popover } from "@mantine/core";
import { Suspense, useRef, useState } from "react";
import type { Call } from "../../charts/copies";
import { csv, download, png, type Rows } from "../../charts/save";
import { lazily } from "./lazily";
import { CopyButton, ESCAPE_ENDS_HERE } from "./CopyMenu";
import classes from "./parts.module.css";

const RowsDialog = lazily(() => import("./RowsDialog"));

interface SaveMenuProps {
  /** The name of the files. */
  name: string;
  /** Some of the rows may have to be read first. */
  rows: () => Rows | Promise<Rows>;
  /** The API call that returns the same numbers. */
  call: Call;
  /** False for a table, which has no picture. */
  picture?: boolean;
}

/** Saves the chart of the panel or figure that it stands in, shows its numbers as a table, and copies links and calls for it. */
export function SaveMenu({ name, rows, call, picture = true }: SaveMenuProps) {
  const root = useRef<HTMLSpanElement>(null);
  const [error, setError] = useState<string | null>(null);
  const [opened, setOpened] = useState(false);
  const [reading, setReading] = useState(false);
  const [shown, setShown] = useState<Rows | null>(null);
  const file = (ending: string) => `${name.replace(/[^\p{L}\p{M}\p{N}_.-]+/gu, "_")}.${ending}`;
  const savePicture = async () => {
    setOpened(false);
    try {
      const panel = root.current!.closest("section, figure")!;
      download(file("png"), await png(panel.querySelector<HTMLElement>(":scope > :last-child")!));
      setError(null);
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    }
  };
  const read = async (take: (found: Rows) => void) => {
    setOpened(false);
    setReading(true);
    try {
      take(await rows());
      setError(null);
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    } finally {
      setReading(false);
    }
  };
  const saveRows = () => void read((found) => download(file("csv"), new Blob([csv(found)], { type: "text/csv" })));
  const show = () => void read(setShown);
  return (
    <span
      ref={root}
      className={classes.saves}
      role="group"
      aria-label={picture ? "Save this chart" : "Save this table"}
    >
      {picture ? (
        <Popover opened={opened} onChange={setOpened} position="bottom-end" trapFocus>
          <Popover.Target>
            <button
              type="button"
              aria-haspopup="dialog"
              {...(opened ? ESCAPE_ENDS_HERE : {})}
              title="Save this chart as PNG or its numbers as CSV, or show them as a table"
              disabled={reading}
              data-loading={reading || undefined}
              onClick={() => setOpened(!opened)}
            >
              {reading ? "reading…" : "save"}
            </button>
          </Popover.Target>
          <Popover.Dropdown p={4}>
            <div className={classes.copies} role="group" aria-label="Ways to save">
              <button type="button" {...ESCAPE_ENDS_HERE} onClick={() => void savePicture()}>
                as PNG
              </button>
              <button type="button" {...ESCAPE_ENDS_HERE} onClick={saveRows}>
                as CSV
              </button>
              <button type="button" {...ESCAPE_ENDS_HERE} aria-haspopup="dialog" onClick={show}>
                show as table
              </button>
            </div>
          </Popover.Dropdown>
        </Popover>
      ) : (
        <button
          type="button"
          title="Save all rows of this table as CSV"
          disabled={reading}
          data-loading={reading || undefined}
          onClick={saveRows}
        >
          {reading ? "reading…" : "CSV"}
        </button>
      )}
      <CopyButton call={call} />
      {error && <span role="alert">{error}</span>}
      {shown && (
        <Suspense>
          <RowsDialog title={name} rows={shown} onClose={() => setShown(null)} />
        </Suspense>
      )}
    </span>
  );
}
