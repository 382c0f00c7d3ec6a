import { Popover } from "@mantine/core";
import { useRef, useState } from "react";
import { ROOT } from "../api/root";
import { asCurl, asPython, copyText, type Call } from "../charts/copies";
import { download, png } from "../charts/save";
import classes from "./parts.module.css";

interface SaveMenuProps {
  /** What the files are called. */
  name: string;
  csv: () => string;
  /** The call of the service that gives the same numbers. */
  call: Call;
}

/** Saves the chart of the panel or figure that it stands in, and copies what leads to it. */
export function SaveMenu({ name, csv, call }: SaveMenuProps) {
  const root = useRef<HTMLSpanElement>(null);
  const [error, setError] = useState<string | null>(null);
  const file = (ending: string) => `${name.replace(/[^\w.-]+/g, "_")}.${ending}`;
  const attempt = async (action: () => void | Promise<void>) => {
    try {
      await action();
      setError(null);
      return true;
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
      return false;
    }
  };
  const savePicture = async () => {
    const panel = root.current!.closest("section, figure")!;
    download(file("png"), await png(panel.querySelector<HTMLElement>(":scope > :last-child")!));
  };
  return (
    <span ref={root} className={classes.saves} role="group" aria-label="Save this chart">
      <button type="button" onClick={() => void attempt(savePicture)}>
        PNG
      </button>
      <button type="button" onClick={() => download(file("csv"), new Blob([csv()], { type: "text/csv" }))}>
        CSV
      </button>
      <CopyMenu call={call} attempt={attempt} />
      {error && <span role="alert">{error}</span>}
    </span>
  );
}

function CopyMenu({ call, attempt }: { call: Call; attempt: (action: () => Promise<void>) => Promise<boolean> }) {
  const [opened, setOpened] = useState(false);
  const [copied, setCopied] = useState<string | null>(null);
  const service = `${window.location.origin}${ROOT}`.replace(/\/$/, "");
  const forms: [string, () => string][] = [
    ["link", () => window.location.href],
    ["Python", () => asPython(call, service)],
    ["curl", () => asCurl(call, service)],
  ];
  const copy = async (label: string, text: string) => {
    if (await attempt(() => copyText(text))) setCopied(label);
  };
  return (
    <Popover opened={opened} onChange={setOpened} position="bottom-end" trapFocus>
      <Popover.Target>
        <button
          type="button"
          onClick={() => {
            setCopied(null);
            setOpened(!opened);
          }}
        >
          copy
        </button>
      </Popover.Target>
      <Popover.Dropdown p={4}>
        <div className={classes.copies} role="group" aria-label="Copy this view">
          {forms.map(([label, text]) => (
            <button key={label} type="button" onClick={() => void copy(label, text())}>
              {copied === label ? "copied" : `as ${label}`}
            </button>
          ))}
        </div>
      </Popover.Dropdown>
    </Popover>
  );
}
