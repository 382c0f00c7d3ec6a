import { Anchor, Drawer } from "@mantine/core";
import { useMediaQuery } from "@mantine/hooks";
import { useCallback, useEffect, useLayoutEffect, useRef, type RefObject } from "react";
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

/**
 * Move the focus from the link or button that opened a trial into its drawer, and back when the drawer is closed: to that link, or to
 * the table that has since scrolled it away. If a link to the page, or a key, has opened the trial, a focus that the user has moved
 * into the drawer goes to the first part of the page, such as its open tab. If a chart opened the trial, the focus stays where it is,
 * since the arrow keys continue from there. On phones, where the drawer covers the page, Mantine does this.
 */
export function useFocus(number: number | undefined, phone: boolean) {
  const content = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const openers = useRef<readonly (HTMLElement | null | undefined)[]>([]);
  const inside = useRef(false); // whether the drawer had the focus last; it is gone when it has lost it
  useEffect(() => {
    const onFocus = ({ target }: FocusEvent) => void (inside.current = !!content.current?.contains(target as Node));
    document.addEventListener("focusin", onFocus);
    return () => document.removeEventListener("focusin", onFocus);
  }, []);
  // Not a dependency: a window that becomes narrower or wider must not move the focus.
  const onPhone = useRef(phone);
  useLayoutEffect(() => {
    onPhone.current = phone;
  });
  const enter = useCallback(() => {
    const from = document.activeElement;
    if (onPhone.current || !(from instanceof HTMLElement) || !from.matches("a, button")) return;
    if (!button.current || content.current?.contains(from)) return;
    openers.current = [from, from.parentElement?.closest<HTMLElement>("[tabindex='0']")];
    button.current.focus({ preventScroll: true });
  }, []);
  // The drawer is there only after its first frame.
  const close = useCallback(
    (made: HTMLButtonElement | null) => {
      button.current = made;
      if (made) enter();
    },
    [enter],
  );
  useEffect(() => {
    if (number !== undefined) {
      enter();
      return;
    }
    const within = document.activeElement === document.body || content.current?.contains(document.activeElement);
    const first = () => (inside.current ? document.querySelector<HTMLElement>("main [tabindex='0']") : null);
    const back = within ? (openers.current.find((one) => one?.isConnected) ?? first()) : null;
    back?.focus({ preventScroll: true });
    // The page gets its figures back above the link, and the keyboard its place in sight. The mouse leaves the page where it is.
    if (back?.matches(":focus-visible")) back.scrollIntoView({ block: "nearest" });
    openers.current = [];
  }, [number, enter]);
  return [content, close] as const;
}

/**
 * Keep the focus where it is in this element when the drawer begins to trap it, since Mantine then moves it to the first control: a
 * phone that is turned must not close the field in which somebody types.
 */
export function useKeptFocus(content: RefObject<HTMLElement | null>, trapped: boolean) {
  useEffect(() => {
    const within = document.activeElement;
    if (!trapped || !(within instanceof HTMLElement) || !content.current?.contains(within)) return;
    const timer = setTimeout(() => within.isConnected && within.focus({ preventScroll: true }));
    return () => clearTimeout(timer);
  }, [content, trapped]);
}

/** Show the open trial beside the page that it belongs to. */
export default function TrialDrawer({ experiment, trial, rank, onSelect, onClose, address }: TrialDrawerProps) {
  const phone = useMediaQuery("(max-width: 640px)") ?? false;
  const [content, close] = useFocus(trial?.number, phone);
  useKeptFocus(content, phone);
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
      <Drawer.Content ref={content}>
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
              <Drawer.CloseButton ref={close} aria-label="Close the trial" data-autofocus />
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
