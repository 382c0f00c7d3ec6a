import { SegmentedControl, Select, VisuallyHidden } from "@mantine/core";
import type { ReactNode } from "react";
import parts from "../common/parts.module.css";
import { useAtOnce } from "../common/useAtOnce";

const LINEAR_OR_LOG = ["linear", "log"];

interface MetricSelectProps {
  metrics: string[];
  value: string;
  width: number;
  /** The text to show if there is nothing to choose from. */
  alone?: string;
  onChange: (metric: string | null) => void;
}

/** The title of a panel of curves: the metric, which can be chosen if there are several. */
export function MetricSelect({ metrics, value, width, alone = value, onChange }: MetricSelectProps) {
  if (metrics.length < 2) return alone;
  return (
    <>
      <VisuallyHidden>Curves of {value}</VisuallyHidden>
      <Select
        size="xs"
        w={width}
        aria-label="Metric"
        allowDeselect={false}
        data={metrics}
        value={value}
        onChange={onChange}
      />
    </>
  );
}

/** The controls of an axis, on one line with its name. */
export function AxisControls({ name, children }: { name: "x" | "y"; children: ReactNode }) {
  return (
    <span className={parts.axis}>
      <span aria-hidden>{name}</span>
      {children}
    </span>
  );
}

/** A switch between a linear and a logarithmic axis. */
export function LinearOrLog({
  label,
  log,
  onChange,
}: {
  label: string;
  log: boolean;
  onChange: (log: boolean) => void;
}) {
  const [shown, change] = useAtOnce(log, onChange);
  return (
    <SegmentedControl
      size="xs"
      aria-label={label}
      value={shown ? "log" : "linear"}
      onChange={(value) => change(value === "log")}
      data={LINEAR_OR_LOG}
    />
  );
}
