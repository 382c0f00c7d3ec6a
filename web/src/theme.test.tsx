import { Drawer, MantineProvider, Modal, Select } from "@mantine/core";
import { render, screen } from "@testing-library/react";
import { expect, it } from "vitest";
import { theme } from "./theme";

it("leaves the page's header the only banner while a dialog is open", async () => {
  render(
    <MantineProvider env="test" theme={theme}>
      <Modal opened onClose={() => {}} title="A form">
        its fields
      </Modal>
      <Drawer.Root opened onClose={() => {}}>
        <Drawer.Content>
          <Drawer.Header>A trial</Drawer.Header>
        </Drawer.Content>
      </Drawer.Root>
    </MantineProvider>,
  );
  const [form, trial] = [await screen.findByText("A form"), await screen.findByText("A trial")];
  expect([form, trial].map((one) => one.closest("header")!.getAttribute("role"))).toEqual(["none", "none"]);
});

it("hides the icons of controls, which have no name, from screen readers", async () => {
  render(
    <MantineProvider env="test" theme={theme}>
      <Select aria-label="State" clearable data={["running"]} value="running" />
      <Select aria-label="Rank" data={["0"]} />
      <Modal opened onClose={() => {}} title="A form" />
    </MantineProvider>,
  );
  await screen.findByText("A form");
  const icons = [...document.querySelectorAll("svg")].filter((icon) => !icon.closest("[aria-hidden=true]"));
  expect([document.querySelectorAll("svg").length >= 3, icons]).toEqual([true, []]);
});
