import { Anchor, Button, Tabs } from "@mantine/core";
import { Link } from "react-router";
import { ROOT } from "../../api/root";
import { WITH_TOKEN } from "../../charts/copies";
import { Panel } from "../common/Panel";
import classes from "../common/parts.module.css";
import { useCopy } from "../common/useCopy";
import { useMayChange, useSession } from "../common/useSession";

const PYTHON = `import tuner

def train(config):
    for epoch in range(27):
        accuracy = ...                      # your training, on every rank
        tuner.report({"accuracy": accuracy})

tuner.run(
    train,
    {"lr": tuner.loguniform(1e-4, 1e-1), "width": tuner.choice([16, 32, 64])},
    metric="accuracy", mode="max", num_samples=16, max_t=27, num_workers=2,
)`;

const curl = (
  root: string,
  asks: boolean,
) => `curl${asks ? ` ${WITH_TOKEN}` : ""} -X POST ${root}api/v1/experiments -H 'Content-Type: application/json' -d '{
  "name": "digits", "entrypoint": "tuner.examples.digits:train",
  "space": {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
            "width": {"type": "choice", "categories": [16, 32, 64]}},
  "metric": "accuracy", "mode": "max", "num_samples": 16, "seed": 1,
  "search": {"type": "random"},
  "scheduler": {"type": "asha", "max_t": 27, "grace_period": 1, "reduction_factor": 3},
  "scaling": {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}}
}'`;

/** Say how to start a first experiment. */
export function FirstExperiment() {
  const mayChange = useMayChange();
  const asks = useSession()?.required ?? false;
  return (
    <div style={{ maxWidth: 820, margin: "32px auto" }}>
      <h1 style={{ fontSize: 20, margin: "0 0 4px" }}>No experiments yet</h1>
      <p style={{ margin: "0 0 16px" }} className={classes.dimmed}>
        {mayChange ? (
          <>
            Start one in any of these ways, or{" "}
            <Anchor component={Link} to="/new" size="sm">
              fill in a form
            </Anchor>
            .
          </>
        ) : (
          "Starting one needs the role editor. It can be done in any of these ways."
        )}{" "}
        It appears here automatically.
      </p>
      <Panel>
        <Tabs defaultValue="python">
          <Tabs.List mb="sm" aria-label="Ways to start an experiment">
            <Tabs.Tab value="python">Python</Tabs.Tab>
            <Tabs.Tab value="http">HTTP</Tabs.Tab>
            <Tabs.Tab value="demo">Demo</Tabs.Tab>
          </Tabs.List>
          <Tabs.Panel value="python">
            <Snippet text={PYTHON} />
          </Tabs.Panel>
          <Tabs.Panel value="http">
            <Snippet text={curl(new URL(ROOT, window.location.href).href, asks)} />
          </Tabs.Panel>
          <Tabs.Panel value="demo">
            <Snippet text="tuner demo" />
          </Tabs.Panel>
        </Tabs>
      </Panel>
    </div>
  );
}

/** Show a text, with a button that copies it. */
export function Snippet({ text }: { text: string }) {
  const { copied, error, copy } = useCopy();
  return (
    <div style={{ position: "relative" }}>
      <pre className={classes.code} style={{ paddingRight: 70 }} tabIndex={0}>
        {text}
      </pre>
      <Button
        size="compact-xs"
        variant="default"
        onClick={() => void copy(text, text)}
        style={{ position: "absolute", top: 8, right: 8 }}
      >
        {copied === text ? "Copied" : "Copy"}
      </Button>
      {error && <span role="alert">{error} Select the text instead.</span>}
    </div>
  );
}
