import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, describe, expect, it } from "vitest";
import Notes from "./Notes";

afterEach(cleanup);

describe("the notes of an experiment", () => {
  it("are Markdown", () => {
    const text = [
      "# Why",
      "",
      "The **old** learning rate was `0.1`, see [the run](https://example.com/run).",
      "",
      "- wider",
      "- longer",
      "",
      "| lr | accuracy |",
      "|---|---|",
      "| 0.1 | 0.9 |",
      "",
      "```",
      "python train.py --lr 0.1",
      "```",
    ].join("\n");
    const { container } = render(<Notes text={text} />);
    expect(screen.getByRole("heading", { name: "Why" }).tagName).toBe("H4");
    expect(container.querySelector("strong")?.textContent).toBe("old");
    expect(screen.getAllByRole("listitem").map((one) => one.textContent)).toEqual(["wider", "longer"]);
    expect(screen.getByRole("cell", { name: "0.9" })).toBeTruthy();
    expect(container.querySelector("pre")?.textContent).toContain("python train.py");
    const link = screen.getByRole("link", { name: "the run" });
    expect([link.getAttribute("href"), link.getAttribute("rel")]).toEqual([
      "https://example.com/run",
      "noreferrer noopener",
    ]);
  });

  it("hold no HTML, no scripts and no pictures from elsewhere", () => {
    const text = [
      "<script>window.bad = 1</script><img src=x onerror='window.bad = 1'> <b onclick='bad()'>bold</b>",
      "",
      "[click](javascript:alert(1)) [data](data:text/html,x) ![seen](https://example.com/pixel.png)",
      "",
      "<iframe src='https://example.com'></iframe> <style>body { display: none }</style>",
    ].join("\n");
    const { container } = render(<Notes text={text} />);
    for (const tag of ["script", "img", "iframe", "style", "b"]) expect(container.querySelector(tag)).toBeNull();
    expect(container.textContent).toContain("<b onclick='bad()'>bold</b>");
    const links = [...container.querySelectorAll("a")].map((one) => one.getAttribute("href"));
    expect(links.filter((href) => href && !href.startsWith("https://"))).toEqual([]);
    expect(screen.getByRole("link", { name: "seen" }).getAttribute("href")).toBe("https://example.com/pixel.png");
  });

  it("show a plain text as it is", () => {
    const { container } = render(<Notes text="one run, 3 * 4 * 5, a_b_c and <5 % loss" />);
    expect(container.textContent).toBe("one run, 3 * 4 * 5, a_b_c and <5 % loss");
  });
});
