import { Anchor, Drawer } from "@mantine/core";
import { useMediaQuery } from "@mantine/hooks";
import { Link } from "react-router";
import type { Experiment, Trial } from "../../api/types";
import { rankedOf } from "../../curves/colours";
import type { Address } from "../../pages/useAddress";
import classes from "../common/parts.module.css";
import { TrialDetails, TrialTitle } from "./TrialDetails";

interface TrialDrawerProps {
  experiment: Experiment;
  trial: Trial | undefined;
  rank: ReadonlyMap<number, number>;
  onSelect: (number: number) => void;
  onClose: () => void;
  address: Address;
}

/** The open trial, beside what it belongs to. */
export default function TrialDrawer({ experiment, trial, rank, onSelect, onClose, address }: TrialDrawerProps) {
  const phone = useMediaQuery("(max-width: 640px)") ?? false;
  return (
    <Drawer.Root
      opened={trial !== undefined}
      onClose={onClose}
      position="right"
      size={phone ? "100%" : 480}
      lockScroll={phone}
      trapFocus={phone}
      classNames={{ inner: classes.drawer! }}
      closeOnClickOutside={false}
      transitionProps={{ duration: 120 }}
    >
      {phone && <Drawer.Overlay />}
      <Drawer.Content>
        {trial && (
          <>
            <Drawer.Header>
              <TrialTitle trial={trial} experiment={experiment} address={address}>
                <Drawer.Title>
                  <Anchor component={Link} to={`/trials/${trial.id}`} fw={600} size="md" c="inherit">
                    Trial {trial.number}
                  </Anchor>
                </Drawer.Title>
              </TrialTitle>
              <Drawer.CloseButton aria-label="Close the trial" data-autofocus />
            </Drawer.Header>
            <Drawer.Body>
              <TrialDetails
                key={trial.id}
                id={trial.id}
                experiment={experiment}
                rank={rank.get(trial.number)}
                of={rankedOf(rank)}
                onSelect={onSelect}
                address={address}
              />
            </Drawer.Body>
          </>
        )}
      </Drawer.Content>
    </Drawer.Root>
  );
}
