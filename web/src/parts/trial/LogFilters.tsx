import { TextInput } from "@mantine/core";
import type { Address } from "../../pages/useAddress";
import classes from "../common/parts.module.css";
import { useTyped } from "../common/useTyped";

/** The number of the trial that the address chooses for a list of decisions or events; undefined: all trials. */
export function chosenTrial(address: Address): number | undefined {
  const of = address.get("of");
  return of !== null && /^\d{1,9}$/.test(of) ? Number(of) : undefined;
}

interface KindChipsProps<T extends string> {
  kinds: readonly T[];
  chosen: readonly T[];
  /** Called with a function, since the previous change may not have been drawn yet. */
  onChange: (change: (chosen: readonly T[]) => readonly T[]) => void;
}

export function KindChips<T extends string>({ kinds, chosen, onChange }: KindChipsProps<T>) {
  return (
    <div className={classes.chips} role="group" aria-label="Filter by kind">
      {kinds.map((kind) => (
        <button
          type="button"
          key={kind}
          aria-pressed={chosen.includes(kind)}
          onClick={() =>
            onChange((newest) => (newest.includes(kind) ? newest.filter((one) => one !== kind) : [...newest, kind]))
          }
        >
          {kind}
        </button>
      ))}
    </div>
  );
}

export function TrialFilter({ address }: { address: Address }) {
  const typed = useTyped(String(chosenTrial(address) ?? ""), (text) => {
    const of = text.replace(/\D/g, "").slice(0, 9);
    address.set({ of });
    return of;
  });
  return <TextInput size="xs" w={92} inputMode="numeric" placeholder="Trial" aria-label="Filter by trial" {...typed} />;
}
