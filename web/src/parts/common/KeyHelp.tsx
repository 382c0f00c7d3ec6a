import { lazy, Suspense, useState } from "react";
import { useKeys } from "./useKeys";

const KeyList = lazy(() => import("./KeyList"));

/** The keys that work on every page: `/` goes to its search field, `?` lists all keys. */
export function KeyHelp() {
  const [open, setOpen] = useState<boolean | null>(null); // null: not opened yet, so not loaded either
  useKeys({
    "?": () => setOpen((old) => !old),
    "/": () => document.querySelector<HTMLInputElement>("input[data-search]")?.focus(),
  });
  return <Suspense>{open !== null && <KeyList opened={open} onClose={() => setOpen(false)} />}</Suspense>;
}
