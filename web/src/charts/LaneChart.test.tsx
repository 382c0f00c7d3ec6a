import { MantineProvider } from "@mantine/core";
import { fireEvent, render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import { LaneChart } from "./LaneChart";

it.each(["Enter", " "])("opens a trial by its name with the key “%s”, as every button", (key) => {
  const onSelect = vi.fn();
  render(
    <MantineProvider>
      <LaneChart
        lanes={{ order: [4], pieces: [], handovers: [], end: 1 }}
        source={() => undefined}
        metric="loss"
        labels={{}}
        shades={{ share: () => null, ends: null, values: [] }}
        by={null}
        selected={null}
        onSelect={onSelect}
      />
    </MantineProvider>,
  );
  fireEvent.keyDown(screen.getByRole("button", { name: "trial 4" }), { key });
  expect(onSelect.mock.calls).toEqual([[4]]);
});
