import { Modal } from "@mantine/core";
import classes from "./KeyList.module.css";

const HELP: readonly (readonly [string, string])[] = [
  ["/", "go to the search field of this page"],
  ["j", "open the next trial of the table"],
  ["k", "open the previous trial of the table"],
  ["x", "pick the open trial, or unpick it"],
  ["c", "compare the picked trials"],
  ["l", "switch the vertical axis of the curves between linear and log"],
  ["Esc", "close the open trial, or this list"],
  ["?", "show this list"],
];

/** The dialog that lists the keys. */
export default function KeyList({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  return (
    <Modal opened={opened} onClose={onClose} title={<b>Keys</b>} centered>
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
