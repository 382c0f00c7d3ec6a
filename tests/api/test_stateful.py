"""Sequences of requests: experiments are created, steered, changed, forked, driven and deleted, in any order.

Hypothesis chooses the sequences. Schemathesis checks each answer against the OpenAPI document, and a model of what exists says
which status it must have: what was created is found, what is listed under `actions` is accepted, what was deleted is gone.
"""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from schemathesis.checks import not_a_server_error

from tests.api.test_schemathesis import CHECKS
from tests.store.examples import T0
from tests.web.searches import Search
from tuner.experiment.operations.verbs import VERBS
from tuner.store import Store

# The service draws random numbers in a thread of its own, while Hypothesis chooses requests.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

SHORT, LONG = 10, 300
"""The number of sequences that are tried."""

CREATE = {
    "entrypoint": "tests.api.trainables:train",
    "space": {
        "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.1},
        "width": {"type": "randint", "lower": 8, "upper": 65},
    },
    "metric": "accuracy",
    "mode": "max",
}
SPECS = st.fixed_dictionaries(
    {
        "scheduler": st.sampled_from(["fifo", "asha", {"type": "median"}]),
        "search": st.sampled_from(["random", {"type": "qmc"}]),
        "num_samples": st.integers(1, 4),
        "max_t": st.integers(1, 9),
    },
    optional={"seed": st.integers(0, 3), "notes": st.just("*tried*"), "priority": st.integers(-2, 2)},
).map(lambda changes: {**CREATE, **changes})
PATCHES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["renamed", ""]),
        "num_samples": st.integers(0, 6),
        "limits": st.sampled_from([{"max_concurrent_trials": 1}, {"max_failures": -1}]),
    },
)
GONE = frozenset({404})


class Walk(RuleBasedStateMachine):
    """Experiments of one service. `store` and `operations` are set by `walk`."""

    store: Store
    operations: dict[str, Any]
    server: str

    experiments: Bundle[str] = Bundle("experiments")
    deleted: Bundle[str] = Bundle("deleted")

    def __init__(self) -> None:
        super().__init__()
        self.alive: set[str] = set()
        self.searches: dict[str, Search] = {}

    def teardown(self) -> None:
        for experiment in sorted(self.alive):
            self.delete(experiment)

    def call(self, method: str, path: str, called: str = "", body: Any = None, query: Any = None) -> Any:
        """Send a request and check its answer against the document."""
        operation = self.operations[f"{method} /api/v1{path}"]
        name = "trial_id" if "{trial_id}" in path else "experiment_id"
        sent = {} if body is None else {"body": body, "media_type": "application/json"}
        case = operation.Case(path_parameters={name: called} if called else {}, query=query or {}, **sent)
        answer = case.call(base_url=self.server, timeout=60)
        case.validate_response(answer, checks=[not_a_server_error, *CHECKS])
        return answer

    def shown(self, experiment: str) -> Any:
        answer = self.call("GET", "/experiments/{experiment_id}", experiment)
        assert answer.status_code == 200
        return answer.json()

    @rule(target=experiments, spec=SPECS)
    def create(self, spec: dict[str, Any]) -> Any:
        answer = self.call("POST", "/experiments", body=spec)
        if spec["scheduler"] != "fifo" and answer.status_code == 422:  # its max_t is too short for it
            return multiple()
        assert answer.status_code == 201, answer.text
        self.alive.add(answer.json()["id"])
        return answer.json()["id"]

    @rule(experiment=experiments, verb=st.sampled_from([name for name in VERBS if name != "continue"]))
    def steer(self, experiment: str, verb: str) -> None:
        before = self.shown(experiment)
        answer = self.call("POST", f"/experiments/{{experiment_id}}/{verb}", experiment)
        assert answer.status_code in (202, 409)
        assert answer.status_code == 202 or verb not in before["actions"]

    @rule(experiment=experiments, more=st.none() | st.integers(1, 2))
    def go_on(self, experiment: str, more: int | None) -> None:
        offered = "continue" in self.shown(experiment)["actions"]
        answer = self.call("POST", "/experiments/{experiment_id}/continue", experiment, {"num_samples": more})
        assert answer.status_code == 202 or not offered

    @rule(experiment=experiments, number=st.integers(0, 3))
    def drive(self, experiment: str, number: int) -> None:
        """Let a driver carry out the commands, and the trials report."""
        if experiment not in self.searches:
            record = self.store.experiments.get(experiment)
            self.searches[experiment] = Search(self.store, record.first_spec, start=T0, record=record)
        self.searches[experiment].obey()
        self.searches[experiment].advance(5 * number)

    @rule(experiment=experiments, patch=PATCHES)
    def change(self, experiment: str, patch: dict[str, Any]) -> None:
        before = self.shown(experiment)
        answer = self.call("PATCH", "/experiments/{experiment_id}", experiment, patch)
        wrong = patch.get("name") == "" or patch.get("num_samples") == 0 or "max_failures" in patch.get("limits", {})
        assert answer.status_code == (422 if wrong else 200), answer.text
        after = self.shown(experiment)
        assert after["name"] == (before["name"] if wrong else patch.get("name", before["name"]))

    @rule(target=experiments, experiment=experiments, learn=st.booleans())
    def fork(self, experiment: str, learn: bool) -> Any:
        answer = self.call("POST", "/experiments/{experiment_id}/fork", experiment, {"changes": {}, "learn": learn})
        if learn and answer.status_code == 422:  # there is nothing to learn from yet
            return multiple()
        assert answer.status_code == 201, answer.text
        assert answer.json()["forked_from"] == experiment
        self.alive.add(answer.json()["id"])
        return answer.json()["id"]

    @rule(experiment=experiments, params=st.sampled_from([{}, {"lr": 0.01}, {"lr": 5.0}, {"width": "wide"}]))
    def enqueue(self, experiment: str, params: dict[str, Any]) -> None:
        offered = "enqueue" in self.shown(experiment)["actions"]
        body = {"configurations": [params]}
        answer = self.call("POST", "/experiments/{experiment_id}/enqueue", experiment, body)
        wrong = params not in ({}, {"lr": 0.01})
        assert answer.status_code == 422 if wrong else (answer.status_code == 202) == offered, answer.text

    @rule(experiment=experiments, data=st.data())
    def steer_a_trial(self, experiment: str, data: st.DataObject) -> None:
        trials = self.call("GET", "/experiments/{experiment_id}/trials", experiment).json()["items"]
        if not trials:
            return
        trial = data.draw(st.sampled_from(trials))
        verb = data.draw(st.sampled_from(["stop", "retry", "fork"]))
        answer = self.call("POST", f"/trials/{{trial_id}}/{verb}", trial["id"])
        assert answer.status_code in (201, 202) or verb not in trial["actions"], answer.text
        assert self.call("GET", "/trials/{trial_id}", trial["id"]).status_code == 200

    @rule(experiment=experiments, hide=st.booleans())
    def archive(self, experiment: str, hide: bool) -> None:
        verb = "archive" if hide else "unarchive"
        record = self.store.experiments.get(experiment)
        continued = any(one.command == "continue" for one in self.store.commands.pending([record.id]))
        offered = verb in self.shown(experiment)["actions"] and not (hide and continued)
        answer = self.call("POST", f"/experiments/{{experiment_id}}/{verb}", experiment)
        assert answer.status_code == 200 or not offered
        assert (answer.status_code == 200) == (not hide or (record.state.ended and not continued)), answer.text
        if answer.status_code == 200:
            assert (answer.json()["archived_at"] is not None) == hide

    @rule(target=deleted, experiment=consumes(experiments))
    def end_and_delete(self, experiment: str) -> str:
        self.delete(experiment)
        return experiment

    def delete(self, experiment: str) -> None:
        offered = "delete" in self.shown(experiment)["actions"]
        first = self.call("DELETE", "/experiments/{experiment_id}", experiment)
        assert (first.status_code == 204) == offered, first.text
        if not offered:
            assert self.call("POST", "/experiments/{experiment_id}/kill", experiment).status_code == 202
            self.drive(experiment, 10)
            assert self.call("DELETE", "/experiments/{experiment_id}", experiment).status_code == 204
        self.alive.discard(experiment)

    @rule(experiment=deleted)
    def ask_for_what_is_gone(self, experiment: str) -> None:
        for method, path in (
            ("GET", ""), ("DELETE", ""), ("GET", "/trials"), ("POST", "/pause"), ("POST", "/fork"), ("GET", "/best"),
        ):  # fmt: skip
            assert self.call(method, f"/experiments/{{experiment_id}}{path}", experiment).status_code in GONE

    @invariant()
    def exactly_what_exists_is_listed(self) -> None:
        found = self.call("GET", "/experiments", query={"archived": "all", "page_size": 1000}).json()["items"]
        assert {one["id"] for one in found} == self.alive


def walk(app: FastAPI, server: str, store: Store, sequences: int, steps: int) -> None:
    """Try this many sequences of requests on a service that has no experiment yet."""
    loaded = schemathesis.openapi.from_dict(app.openapi())
    found = {one.ok().label: one.ok() for one in loaded.get_all_operations()}
    machine = type("Walk", (Walk,), {"store": store, "operations": found, "server": server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate,),  # to shorten a sequence that fails takes longer than to find it
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_sequence_of_requests_leads_to_documented_answers(app: FastAPI, server: str, sqlite_store: Store) -> None:
    walk(app, server, sqlite_store, SHORT, 15)


@pytest.mark.long  # the short form is above
@pytest.mark.timeout(1800)
def test_long_sequences_of_requests(app: FastAPI, server: str, sqlite_store: Store) -> None:
    walk(app, server, sqlite_store, LONG, 50)
