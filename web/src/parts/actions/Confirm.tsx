import { Button, Group, Modal, Text } from "@mantine/core";
import { useEffect, useRef } from "react";
import { FocusBack } from "../common/FocusBack";
import { useFirstPress } from "../common/useFirstPress";

export interface Question {
  question: string;
  subject: string;
  effect: string;
  verb: string;
  /** The label of the button that confirms, if it differs from that of the action. */
  sure?: string;
  keep: string;
  final: boolean;
  /** Why it can no longer be done: somebody may have been faster in another window. Absent while it can be done. */
  late?: string | undefined;
}

interface ConfirmProps {
  asked: Question | null;
  pending: boolean;
  error: Error | null;
  onConfirm: () => void;
  onClose: () => void;
}

/** A question before an action, with what the action will do. */
export function Confirm({ asked, pending, error, onConfirm, onClose }: ConfirmProps) {
  const confirm = useFirstPress(pending, onConfirm);
  // While the answer is on its way, the page may show already what the action has done.
  const late = pending ? undefined : asked?.late;
  const close = useRef<HTMLButtonElement>(null);
  // The button that had the focus is gone.
  useEffect(() => {
    if (late !== undefined) close.current?.focus();
  }, [late]);
  return (
    <Modal opened={asked !== null} onClose={onClose} title={<b>{asked?.question}</b>} centered>
      {asked && (
        <>
          <FocusBack />
          <Text size="sm" mb="md" role={late ? "alert" : undefined}>
            <b>{asked.subject}</b>: {late ?? asked.effect}
          </Text>
          {error && (
            <Text size="sm" c="red" mb="sm" role="alert">
              {error.message}
            </Text>
          )}
          <Group justify="flex-end" gap="xs">
            <Button ref={close} size="sm" variant="default" onClick={onClose}>
              {late ? "Close" : asked.keep}
            </Button>
            {!late && (
              <Button
                size="sm"
                {...(asked.final ? { color: "red" } : {})}
                loading={pending}
                onClick={confirm}
                data-autofocus
              >
                {asked.sure ?? asked.verb}
              </Button>
            )}
          </Group>
        </>
      )}
    </Modal>
  );
}
