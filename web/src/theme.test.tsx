import { Drawer, MantineProvider, Modal } from "@mantine/core";
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
