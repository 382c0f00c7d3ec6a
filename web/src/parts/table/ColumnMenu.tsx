import { Popover } from "@mantine/core";
import type { Column as TableColumn } from "@tanstack/react-table";
import type { Trial } from "../../api/types";
import { shortened } from "../../charts/dimensions";
import { useAtOnce } from "../common/useAtOnce";
import { metaOf, MOST_IN_HEAD } from "./trialColumns";
import classes from "./TrialTable.module.css";

export function ColumnMenu({ columns }: { columns: TableColumn<Trial>[] }) {
  return (
    <Popover position="bottom-end" shadow="md" hideDetached={false} trapFocus>
      <Popover.Target>
        <button type="button" aria-haspopup="dialog">
          columns
        </button>
      </Popover.Target>
      <Popover.Dropdown p={8}>
        <div className={classes.menu} role="group" aria-label="Columns of the table">
          {columns.map((column) => (
            <div key={column.id}>
              <label>
                <ColumnTick column={column} />{" "}
                <span title={metaOf(column).label}>{shortened(metaOf(column).label, MOST_IN_HEAD)}</span>
              </label>
              {column.id !== "number" && (
                <button
                  type="button"
                  aria-pressed={column.getIsPinned() === "left"}
                  aria-label={`${column.getIsPinned() ? "unpin" : "pin"} ${metaOf(column).label}`}
                  onClick={() => column.pin(column.getIsPinned() ? false : "left")}
                >
                  {column.getIsPinned() ? "unpin" : "pin"}
                </button>
              )}
            </div>
          ))}
        </div>
      </Popover.Dropdown>
    </Popover>
  );
}

function ColumnTick({ column }: { column: TableColumn<Trial> }) {
  const [shown, show] = useAtOnce(column.getIsVisible(), (on) => column.toggleVisibility(on));
  return (
    <input
      type="checkbox"
      aria-label={metaOf(column).label}
      checked={shown}
      disabled={!column.getCanHide()}
      onChange={(event) => show(event.currentTarget.checked)}
    />
  );
}
