import { MantineProvider } from "@mantine/core";
import { render } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Trial } from "../api/types";
import { objectiveOf } from "./dimensions";
import { ParetoChart } from "./ParetoChart";
import { countAxis, dotsOf } from "./scatter";
import { ScatterChart } from "./ScatterChart";

beforeEach(() => {
  const context = new Proxy({}, { get: () => () => ({ width: 30 }), set: () => true });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockImplementation((() => context) as never);
});
afterEach(() => void vi.restoreAllMocks());

const trials = [123456.51, 123456.56].map(
  (value, number) =>
    ({ number, state: "completed", iteration: 1, best_value: value, params: {}, last: {} }) as unknown as Trial,
);
const common = { trials: new Map(), labels: {}, only: null, colours: new Map(), selected: null, pointed: null };
const handlers = { onSelect: () => {}, onPoint: () => {}, height: 300 };

it.each(["points of trials", "a Pareto front"])("have room left of %s, even for long numbers", (chart) => {
  const up = objectiveOf(trials, { metric: "loss" })!;
  const across = countAxis("trial", 0, 1);
  const dots = dotsOf(trials, across, up, (trial) => trial.number);
  const { container } = render(
    <MantineProvider>
      {chart === "points of trials" ? (
        <ScatterChart
          {...common}
          {...handlers}
          dots={dots}
          across={across}
          up={up}
          metric="loss"
          rank={new Map()}
          label="points"
        />
      ) : (
        <ParetoChart
          {...common}
          {...handlers}
          points={trials.map(({ number, best_value }) => ({ number, values: [number, best_value!] }))}
          front={new Set()}
          objectives={[
            { metric: "size", mode: "min" },
            { metric: "loss", mode: "min" },
          ]}
          axes={[0, 1]}
        />
      )}
    </MantineProvider>,
  );
  const labels = [...container.querySelectorAll("text[text-anchor=end]")];
  const texts = labels.map((label) => label.textContent);
  expect(texts).toContain("123456.52");
  for (const [i, label] of labels.entries())
    expect(Number(label.getAttribute("x")), texts[i]).toBeGreaterThanOrEqual(6.6 * texts[i]!.length);
});
