import { act } from "@testing-library/react";

/** Wait until what observes the page has seen the latest change, and has done what it does in the frame after it. */
export async function nextFrame(): Promise<void> {
  await Promise.resolve(); // the observers run, and ask for the frame before this does
  await act(() => new Promise<void>((done) => requestAnimationFrame(() => setTimeout(done))));
}
