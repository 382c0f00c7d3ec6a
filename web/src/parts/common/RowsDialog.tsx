import { Button, Group, Modal } from "@mantine/core";
import { useState } from "react";
import type { Rows } from "../../charts/save";
import { metric } from "../../format";
import { FocusBack } from "./FocusBack";
import classes from "./parts.module.css";

/** The number of rows on the page at a time. */
const PAGE = 200;

/** The numbers of a chart as a table, for those who cannot see it and for those who want to read it exactly. */
export default function RowsDialog({ title, rows, onClose }: { title: string; rows: Rows; onClose: () => void }) {
  const [first, setFirst] = useState(0);
  const [heads = [], ...body] = rows;
  const shown = body.slice(first, first + PAGE);
  const last = first + shown.length;
  return (
    <Modal opened onClose={onClose} size="xl" title={<b>{title}</b>}>
      <FocusBack />
      {body.length === 0 ? (
        <p className={classes.none}>There are no numbers yet.</p>
      ) : (
        <>
          <div className={classes.rowsBox} tabIndex={0} role="region" aria-label={`Numbers of ${title}`}>
            <table className={classes.rows} aria-label={`Numbers of ${title}`} aria-rowcount={rows.length}>
              <thead>
                <tr>
                  {heads.map((head, i) => (
                    <th key={i} scope="col">
                      {String(head)}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {shown.map((row, i) => (
                  <tr key={first + i} aria-rowindex={first + i + 2}>
                    {heads.map((_, k) => (
                      <td key={k} data-numeric={typeof row[k] === "number"}>
                        {cell(row[k])}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <Group justify="space-between" mt="xs" gap="xs">
            <span className={classes.dimmed} role="status">
              Rows {(first + 1).toLocaleString("en")} to {last.toLocaleString("en")} of{" "}
              {body.length.toLocaleString("en")}
            </span>
            {body.length > PAGE && (
              <Group gap={6}>
                <Button
                  size="compact-xs"
                  variant="default"
                  disabled={first === 0}
                  onClick={() => setFirst(first - PAGE)}
                >
                  Earlier
                </Button>
                <Button
                  size="compact-xs"
                  variant="default"
                  disabled={last >= body.length}
                  onClick={() => setFirst(first + PAGE)}
                >
                  Later
                </Button>
              </Group>
            )}
          </Group>
        </>
      )}
    </Modal>
  );
}

function cell(value: unknown): string {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "number") return Number.isSafeInteger(value) ? String(value) : metric(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
