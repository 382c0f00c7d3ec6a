import { Button, Modal } from "@mantine/core";
import type { ReactNode } from "react";
import type { Experiment } from "../../api/types";
import { FocusBack } from "../common/FocusBack";
import { Mistakes } from "../common/Mistakes";
import { useFirstPress } from "../common/useFirstPress";
import classes from "./actions.module.css";

export interface DialogProps {
  experiment: Experiment;
  onClose: () => void;
  /** Called with a sentence about what was done, even if the form was closed before the answer came. */
  onDone: (words: string) => void;
}

interface FormDialogProps {
  title: string;
  /** The text that says what the form will do. */
  words?: ReactNode;
  verb: string;
  wrong: string;
  pending: boolean;
  error: Error | null;
  disabled?: boolean;
  final?: boolean;
  size?: string;
  children?: ReactNode;
  onSend: () => void;
  onClose: () => void;
}

/** A form in a dialog: what it will do, its fields, and every mistake that the service finds in them. */
export function FormDialog(props: FormDialogProps) {
  const { title, words, verb, wrong, pending, error, disabled, final, size, children, onSend, onClose } = props;
  const send = useFirstPress(pending, onSend);
  return (
    // A click beside the form must not lose what was typed.
    <Modal
      opened
      onClose={onClose}
      closeOnClickOutside={false}
      title={<b>{title}</b>}
      centered
      {...(size ? { size } : {})}
    >
      <FocusBack />
      <form
        className={classes.form}
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        {words && <p className={classes.words}>{words}</p>}
        {children}
        {error && <Mistakes error={error} title={wrong} />}
        <div className={classes.end}>
          <Button size="sm" variant="default" onClick={onClose}>
            Close
          </Button>
          <Button
            size="sm"
            type="submit"
            {...(final ? { color: "red" } : {})}
            loading={pending}
            disabled={disabled ?? false}
          >
            {verb}
          </Button>
        </div>
      </form>
    </Modal>
  );
}
