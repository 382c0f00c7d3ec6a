import { MantineProvider } from "@mantine/core";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { StartedOver, startedOverWords } from "./StartedOver";

afterEach(() => {
  cleanup();
  vi.restoreAllMocks();
});

const resumed = (...trials: number[]) => trials.map((trial_number) => ({ trial_number }));

function show(state: Experiment["state"], trials: number[], onShow = () => {}) {
  const asked = vi
    .spyOn(api, "decisions")
    .mockResolvedValue({ items: resumed(...trials), next_page_token: null } as never);
  const client = new QueryClient();
  render(
    <MantineProvider>
      <QueryClientProvider client={client}>
        <StartedOver experiment={{ id: "exp_1", state, trials: 9 }} onShow={onShow} />
      </QueryClientProvider>
    </MantineProvider>,
  );
  return { asked, client };
}

describe("the warning that trials started over", () => {
  it("says how many trials, how often, and what to do", async () => {
    let shown = 0;
    const { asked } = show("running", [8, 3, 8], () => shown++);
    const notice = await screen.findByRole("status");
    expect(notice.textContent).toMatch(
      /^2 trials started over, 3 times in all, because they had no checkpoint .* its iteration is lower .* checkpoint=/,
    );
    expect(asked.mock.calls[0]!.slice(0, 2)).toEqual([
      "exp_1",
      { kind: ["resume"], text: "starts from the beginning", page_size: 200 },
    ]);
    fireEvent.click(screen.getByRole("button", { name: "Show these decisions" }));
    expect(shown).toBe(1);
  });

  it("does not speak of catching up once the experiment has ended", async () => {
    show("completed", [8]);
    const notice = await screen.findByRole("status");
    expect(notice.textContent).toContain(
      "1 trial started over, because it had no checkpoint to continue from: it repeated",
    );
    expect(notice.textContent).not.toContain("caught up");
  });

  it("is not shown if no trial did", async () => {
    const { client } = show("running", []);
    await waitFor(() => expect(client.getQueryCache().getAll()[0]!.state.status).toBe("success"));
    expect(screen.queryByRole("status")).toBeNull();
  });

  it("gives no exact number of very many", () =>
    expect(startedOverWords(resumed(1, 2, 2), true)).toBe("Trials started over more than 3 times"));
});
