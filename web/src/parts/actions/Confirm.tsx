import { Button, Group, Modal, Text } from "@mantine/core";
import { FocusBack } from "../common/FocusBack";

export interface Question {
  question: string;
  subject: string;
  effect: string;
  verb: string;
  /** The label of the button that confirms, if it differs from that of the action. */
  sure?: string;
  keep: string;
  final: boolean;
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
  return (
    <Modal opened={asked !== null} onClose={onClose} title={<b>{asked?.question}</b>} centered>
      {asked && (
        <>
          <FocusBack />
          <Text size="sm" mb="md">
            <b>{asked.subject}</b>: {asked.effect}
          </Text>
          {error && (
            <Text size="sm" c="red" mb="sm" role="alert">
              {error.message}
            </Text>
          )}
          <Group justify="flex-end" gap="xs">
            <Button size="sm" variant="default" onClick={onClose}>
              {asked.keep}
            </Button>
            <Button
              size="sm"
              {...(asked.final ? { color: "red" } : {})}
              loading={pending}
              onClick={onConfirm}
              data-autofocus
            >
              {asked.sure ?? asked.verb}
            </Button>
          </Group>
        </>
      )}
    </Modal>
  );
}
