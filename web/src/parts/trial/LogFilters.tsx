import { TextInput } from "@mantine/core";
import type { Address } from "../../pages/useAddress";
import classes from "../common/parts.module.css";

/** The number of the trial that the address chooses for a list of decisions or events; undefined: all trials. */
export function chosenTrial(address: Address): number | undefined {
  const of = address.get("of");
  return of !== null && /^\d{1,9}$/.test(of) ? Number(of) : undefined;
}

interface KindChipsProps<T extends string> {
  kinds: readonly T[];
  chosen: readonly T[];
  onChange: (chosen: T[]) => void;
}

export function KindChips<T extends string>({ kinds, chosen, onChange }: KindChipsProps<T>) {
  return (
    <div className={classes.chips} role="group" aria-label="Filter by kind">
      {kinds.map((kind) => (
        <button
          type="button"
          key={kind}
          aria-pressed={chosen.includes(kind)}
          onClick={() => onChange(chosen.includes(kind) ? chosen.filter((one) => one !== kind) : [...chosen, kind])}
        >
          {kind}
        </button>
      ))}
    </div>
  );
}

export function TrialFilter({ address }: { address: Address }) {
  return (
    <TextInput
      size="xs"
      w={92}
      inputMode="numeric"
      placeholder="Trial"
      aria-label="Filter by trial"
      value={chosenTrial(address) ?? ""}
      onChange={(event) => address.set({ of: event.currentTarget.value.replace(/\D/g, "").slice(0, 9) })}
    />
  );
}
