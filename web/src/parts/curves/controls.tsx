import { SegmentedControl, VisuallyHidden } from "@mantine/core";
import type { ReactNode } from "react";
import { choices, formatAcross, type Across } from "../../curves/across";
import { Select } from "../common/Select";
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

interface AcrossSelectProps {
  /** The metrics that can be the axis. */
  metrics: readonly string[];
  /** The metric of the vertical axis. */
  metric: string;
  across: Across;
  onChange: (value: string | null) => void;
}

/** Selects the horizontal axis of curves. */
export function AcrossSelect({ metrics, metric, across, onChange }: AcrossSelectProps) {
  return (
    <Select
      size="xs"
      w={112}
      aria-label="Horizontal axis"
      allowDeselect={false}
      searchable={metrics.length > 8}
      data={choices(metrics, metric)}
      value={formatAcross(across)}
      onChange={onChange}
    />
  );
}
