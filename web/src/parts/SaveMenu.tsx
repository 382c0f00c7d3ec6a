import { useRef, useState } from "react";
import { download, png } from "../charts/save";
import classes from "./parts.module.css";

/** Saves the chart of the panel that it stands in. */
export function SaveMenu({ name, csv }: { name: string; csv: () => string }) {
  const root = useRef<HTMLSpanElement>(null);
  const [error, setError] = useState<string | null>(null);
  const file = (ending: string) => `${name.replace(/[^\w.-]+/g, "_")}.${ending}`;
  const savePicture = async () => {
    const panel = root.current!.closest("section")!;
    try {
      download(file("png"), await png(panel.querySelector<HTMLElement>(":scope > :last-child")!));
      setError(null);
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    }
  };
  return (
    <span ref={root} className={classes.saves} role="group" aria-label="Save this chart">
      <button type="button" onClick={() => void savePicture()}>
        PNG
      </button>
      <button type="button" onClick={() => download(file("csv"), new Blob([csv()], { type: "text/csv" }))}>
        CSV
      </button>
      {error && <span role="alert">{error}</span>}
    </span>
  );
}
