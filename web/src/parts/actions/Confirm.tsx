import { lazy, Suspense, useState } from "react";
import type { ConfirmProps } from "./ConfirmDialog";

const ConfirmDialog = lazy(() => import("./ConfirmDialog"));

/** A question before something is done, with what it will do. The dialog is loaded when the first question is asked. */
export function Confirm(props: ConfirmProps) {
  const [needed, setNeeded] = useState(false);
  if (props.asked !== null && !needed) setNeeded(true);
  return <Suspense>{needed && <ConfirmDialog {...props} />}</Suspense>;
}
