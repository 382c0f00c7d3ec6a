"""A spec that is read in order to be sent again, as the page does to clone an experiment."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import SPEC, app, client, poked
from tests.experiment.code.test_by_value import spec as spec_by_value
from tests.experiment.operations.test_fork import EXPERIMENTS, created
from tuner.domain.experiment import Spec
from tuner.experiment.operations.copying import copy_of
from tuner.experiment.specs.spec import parse_spec, shortened
from tuner.store import Store

__all__ = ["app", "client", "poked"]

EVERYTHING: dict[str, Any] = {
    **SPEC,
    "search": {"type": "random"},
    "points_to_evaluate": [{"lr": 0.01}],
    "stop": {"accuracy": 0.99},
    "scope": "last",
    "time_attr": "epoch",
    "scaling": {"num_workers": 2, "max_workers": 4, "resources_per_worker": {"CPU": 0.5}},
    "limits": {"hang_timeout_s": None, "max_failures": 2, "repeats": "auto"},
    "checkpoint": {"frequency": 2, "interval_s": None, "keep_best": None, "storage": "/tmp/checkpoints"},
    "executor": "ray",
    "runtime_env": {"env_vars": {"DATA": "/data"}},
    "priority": 5,
    "weight": 2.0,
    "project": "vision",
    "notes": "as in *the report*",
    "tags": {"team": "vision"},
}


@pytest.mark.parametrize(
    "changes", [{}, EVERYTHING, {"metric": ["accuracy", "size"], "mode": ["max", "min"], "scheduler": {"type": "fifo"}}]
)
def test_a_short_spec_gives_the_same_spec(changes: dict[str, Any]) -> None:
    spec = parse_spec({**SPEC, **changes})
    assert parse_spec(shortened(spec)) == spec


def test_a_short_spec_has_what_was_asked_for_and_not_the_defaults() -> None:
    asked = {
        **EVERYTHING,
        "limits": {**EVERYTHING["limits"], "max_system_failures": 10},
        "checkpoint": {**EVERYTHING["checkpoint"], "keep_last": 1},
    }
    assert shortened(parse_spec(asked)) == {**EVERYTHING, "warm_start": None}


async def test_a_copy_is_created_from_the_spec_of_an_experiment(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    source = await created(client, EVERYTHING)
    changed = await client.patch(f"{EXPERIMENTS}/{source['id']}", json={"limits": {"max_failures": 3}})
    assert changed.status_code == 200
    answer = await client.get(f"{EXPERIMENTS}/{source['id']}/spec")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["left_out"] == []
    assert found["spec"]["limits"]["max_failures"] == 3
    copy = await created(client, found["spec"])
    assert copy["forked_from"] is None
    specs = [sqlite_store.experiments.get(made["id"]).spec for made in (source, copy)]
    assert specs[0] == specs[1]
    assert (await client.get(f"{EXPERIMENTS}/exp_0/spec")).status_code == 404


async def test_a_function_by_value_cannot_be_part_of_a_spec(client: httpx.AsyncClient) -> None:
    source = await created(client, spec_by_value())
    found = (await client.get(f"{EXPERIMENTS}/{source['id']}/spec")).json()
    assert [one["pointer"] for one in found["left_out"]] == ["/entrypoint"]
    assert "fork keeps the function" in found["left_out"][0]["reason"]
    assert "entrypoint" not in found["spec"]
    await created(client, {**found["spec"], "entrypoint": SPEC["entrypoint"]})


def copied(sqlite_store: Store, **parts: Any) -> Any:
    spec = parse_spec(SPEC)
    whole = Spec.from_json({**spec.to_json(), **parts})
    return copy_of(sqlite_store.experiments.create(whole))


def test_python_objects_are_left_out_and_named(sqlite_store: Store) -> None:
    given = {"type": "python", "repr": "<my.Scheduler>"}
    copy = copied(sqlite_store, scheduler=given, stop={"type": "python", "repr": ""})
    assert [pointer for pointer, _ in copy.left_out] == ["/scheduler", "/stop"]
    assert "<my.Scheduler>" in copy.left_out[0][1]
    assert not {"scheduler", "stop"} & copy.spec.keys()
    assert parse_spec(copy.spec).scheduler == {"type": "auto"}


def test_agents_bring_their_code_so_nothing_is_left_out(sqlite_store: Store) -> None:
    copy = copied(sqlite_store, entrypoint=None, executor="agents")
    assert (copy.left_out, copy.spec["executor"]) == ([], "agents")


@pytest.mark.parametrize(
    ("others", "environment"),
    [
        ([], None),
        (["/modules/mine"], {"py_modules": ["/modules/mine"]}),
    ],
)
def test_a_bundle_is_named_by_its_hash(sqlite_store: Store, others: list[str], environment: Any) -> None:
    """A service adds the bundle to the runtime environment under an URI of its own storage."""
    sha256 = "0a" * 32
    stored = {"py_modules": [f"file:///home/bundles/{sha256}.zip", *others]}
    copy = copied(sqlite_store, runtime_env=stored)
    assert (copy.spec["bundle"], copy.spec.get("runtime_env")) == (sha256, environment)
    with_variables = copied(sqlite_store, runtime_env={**stored, "env_vars": {"A": "1"}})
    assert with_variables.spec["runtime_env"] == {"env_vars": {"A": "1"}, **(environment or {})}
