"""A fork: an experiment from the spec of another one, with changes."""

from __future__ import annotations

import platform
from typing import Any

import httpx
import pytest

from tests.api.conftest import SPEC, app, client, poked
from tests.experiment.code.test_by_value import spec as spec_by_value
from tests.store.examples import T0, a_report, begin
from tuner.domain.batch import Batch
from tuner.experiment.code import by_value
from tuner.experiment.specs.changes import merge_patch
from tuner.experiment.specs.spec import parse_spec, written
from tuner.store import ExperimentRecord, Store
from tuner.usercode.trainable import by_value as pickled

__all__ = ["app", "client", "poked"]

EXPERIMENTS = "/api/v1/experiments"


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [  # appendix A of RFC 7396
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(target, patch) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"metric": ["accuracy", "size"], "mode": ["max", "min"], "scheduler": {"type": "fifo"}},
        {"checkpoint": {"frequency": 2, "keep_last": None}, "tags": {"team": "vision"}, "stop": {"accuracy": 0.99}},
    ],
)
def test_a_spec_as_written_gives_the_same_spec(changes: dict[str, Any]) -> None:
    spec = parse_spec({**SPEC, **changes})
    assert parse_spec(written(spec)) == spec


async def created(client: httpx.AsyncClient, spec: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(EXPERIMENTS, json=spec)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_fork_has_the_spec_with_the_changes(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    source = await created(client, {**SPEC, "tags": {"team": "vision"}})
    assert source["forked_from"] is None
    changed = await client.patch(f"{EXPERIMENTS}/{source['id']}", json={"limits": {"max_failures": 3}})
    assert changed.status_code == 200
    changes = {"num_samples": 4, "space": {"lr": {"upper": 0.5}}, "limits": {"time_budget_s": None}}
    answer = await client.post(f"{EXPERIMENTS}/{source['id']}/fork", json={"changes": changes})
    assert answer.status_code == 201, answer.text
    fork = answer.json()
    assert answer.headers["location"] == f"{EXPERIMENTS}/{fork['id']}"
    assert (fork["forked_from"], fork["name"], fork["num_samples"]) == (source["id"], "digits-fork", 4)
    assert fork["space"] == {**SPEC["space"], "lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.5}}
    assert fork["limits"] == {**changed.json()["limits"], "time_budget_s": None}
    assert (fork["tags"], fork["seed"], fork["entrypoint"]) == ({"team": "vision"}, 1, SPEC["entrypoint"])
    assert (await client.get(f"{EXPERIMENTS}/{fork['id']}")).json() == fork
    assert (await client.get(f"{EXPERIMENTS}/{source['id']}")).json()["name"] == "digits"


async def test_points_outside_the_changed_space_do_not_prevent_a_fork(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    points = [{"lr": 0.09}, {"lr": 0.01}]
    source = await created(client, {**SPEC, "search": {"type": "random"}, "points_to_evaluate": points})
    narrow = {"space": {"lr": {"type": "loguniform", "lower": 1e-4, "upper": 0.05}}}
    url = f"{EXPERIMENTS}/{source['id']}"
    assert (await client.patch(url, json=narrow)).status_code == 200
    answer = await client.post(f"{url}/fork")
    assert answer.status_code == 201, answer.text
    assert sqlite_store.experiments.get(answer.json()["id"]).spec.points_to_evaluate == (points[1],)
    given = {"changes": {"points_to_evaluate": [{"lr": 0.02}]}}
    answer = await client.post(f"{url}/fork", json=given)
    assert sqlite_store.experiments.get(answer.json()["id"]).spec.points_to_evaluate == ({"lr": 0.02},)
    answer = await client.post(f"{url}/fork", json={"changes": {"points_to_evaluate": points}})
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/points_to_evaluate/0/lr"], (
        "these are the user's"
    )
    copy = (await client.get(f"{url}/spec")).json()
    assert copy["spec"]["points_to_evaluate"] == points[1:]
    assert copy["left_out"] == [
        {"pointer": "/points_to_evaluate", "reason": "1 point lies outside the search space, which a user has changed"}
    ]
    await created(client, copy["spec"])


async def test_a_repeated_key_creates_nothing_more(client: httpx.AsyncClient) -> None:
    source = await created(client, SPEC)
    url, key = f"{EXPERIMENTS}/{source['id']}/fork", {"Idempotency-Key": "once"}
    first = await client.post(url, json={"changes": {"seed": 2}}, headers=key)
    again = await client.post(url, json={"changes": {"seed": 2}}, headers=key)
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    assert (await client.post(url, json={"changes": {"seed": 3}}, headers=key)).status_code == 409
    plain = {**SPEC, "seed": 2, "name": "digits-fork"}
    assert (await client.post(EXPERIMENTS, json=plain, headers=key)).status_code == 409
    assert len((await client.get(EXPERIMENTS)).json()["items"]) == 2


async def test_a_repeated_key_returns_the_fork_even_if_the_original_has_changed(client: httpx.AsyncClient) -> None:
    source = await created(client, {**SPEC, "project": "vision"})
    url, key = f"{EXPERIMENTS}/{source['id']}/fork", {"Idempotency-Key": "once"}
    request = {"changes": {"space": {"lr": {"upper": 0.5}}}}
    first = await client.post(url, json=request, headers=key)
    changes = {"notes": "look at this", "space": {"lr": None}, "assume": {}}  # the fork's changes no longer fit
    changed = await client.patch(f"{EXPERIMENTS}/{source['id']}", json=changes)
    again = await client.post(url, json=request, headers=key)
    assert (first.status_code, changed.status_code, again.status_code) == (201, 200, 201), again.text
    assert again.json() == first.json()
    for other in ({"changes": {"seed": 7}}, {**request, "learn": True}):
        assert (await client.post(url, json=other, headers=key)).status_code != 201
    assert len((await client.get(EXPERIMENTS)).json()["items"]) == 2


async def test_a_function_by_value_is_used_again(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    source = await created(client, spec_by_value())
    answer = await client.post(f"{EXPERIMENTS}/{source['id']}/fork")
    assert answer.status_code == 201, answer.text
    records = [sqlite_store.experiments.get(one["id"]) for one in (source, answer.json())]
    assert records[0].code_hash == records[1].code_hash
    entrypoint = await client.post(
        f"{EXPERIMENTS}/{source['id']}/fork", json={"changes": {"entrypoint": SPEC["entrypoint"]}}
    )
    assert (entrypoint.status_code, entrypoint.json()["entrypoint"]) == (201, SPEC["entrypoint"])


async def test_a_fork_whose_function_another_python_has_pickled_is_refused_before_anything_is_written(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: dict[str, Any]) -> None: ...

    source = await created(client, spec_by_value(**by_value.written(pickled(train))))
    url = f"{EXPERIMENTS}/{source['id']}/fork"
    monkeypatch.setattr(platform, "python_version", lambda: "3.1.4")
    answer = await client.post(url)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["pointer"] == "/entrypoint"
    assert "fork it with Python 3." in error["message"]
    assert len((await client.get(EXPERIMENTS)).json()["items"]) == 1
    answer = await client.post(url, json={"changes": {"entrypoint": SPEC["entrypoint"]}})
    assert answer.status_code == 201, answer.text


async def test_a_function_may_replace_the_entrypoint(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    source = await created(client, SPEC)
    changes = {"function": spec_by_value()["function"]}
    answer = await client.post(f"{EXPERIMENTS}/{source['id']}/fork", json={"changes": changes})
    assert (answer.status_code, answer.json().get("entrypoint", "?")) == (201, None), answer.text
    code = sqlite_store.experiments.get(answer.json()["id"]).code_hash
    assert code is not None
    assert sqlite_store.code.get(code).blob is not None


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"changes": {"seeds": 1}}, "/seeds"),
        ({"changes": {"entrypoint": "tests.api.trainables:absent"}}, "/entrypoint"),
        ({"changes": {"entrypoint": None}}, "/entrypoint"),
        ({"changes": {"warm_start": ["absent"]}}, "/warm_start/0"),
        ({"changes": []}, "/changes"),
        ({"changed": {}}, "/changed"),
    ],
)
async def test_mistakes_are_pointed_at(client: httpx.AsyncClient, body: Any, pointer: str) -> None:
    source = await created(client, SPEC)
    answer = await client.post(f"{EXPERIMENTS}/{source['id']}/fork", json=body)
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert (await client.post(f"{EXPERIMENTS}/exp_absent/fork", json={})).status_code == 404


def with_results(store: Store) -> ExperimentRecord:
    """Store an experiment whose trials are better the larger their learning rate is."""
    spec = parse_spec({**SPEC, "space": {"lr": {"type": "uniform", "lower": 0.0, "upper": 1.0}}, "max_t": 27})
    made, epoch, trials = begin(store, 8, spec=spec)
    log = [
        (
            2 + 2 * len(trials) + 3 * trial.number + at,
            a_report(trial.number, at + 1, accuracy=trial.params["lr"] + at / 99),
        )
        for trial in trials
        for at in range(3)
    ]
    store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0 + 9)
    return made


async def test_a_fork_learns_from_the_trials_if_asked(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    source = with_results(sqlite_store)
    changes = {"entrypoint": SPEC["entrypoint"], "space": {"lr": {"upper": 0.5}}}
    for learn in (True, False):
        body = {"changes": changes, "learn": learn}
        answer = await client.post(f"{EXPERIMENTS}/{source.public_id}/fork", json=body)
        assert answer.status_code == 201, answer.text
        spec = sqlite_store.experiments.get(answer.json()["id"]).spec
        assert spec.warm_start == ([source.public_id] if learn else None)
        assert [each["trials"] for each in spec.earlier.get("experiments", ())] == ([8] if learn else [])


async def test_a_fork_of_a_fork_does_without_an_experiment_that_was_deleted(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    source = with_results(sqlite_store)
    changes = {"entrypoint": SPEC["entrypoint"]}
    answer = await client.post(f"{EXPERIMENTS}/{source.public_id}/fork", json={"changes": changes, "learn": True})
    first = answer.json()["id"]
    sqlite_store.experiments.seize(source.id)
    sqlite_store.experiments.remove(source.id)
    answer = await client.post(f"{EXPERIMENTS}/{first}/fork", json={})
    assert answer.status_code == 201, answer.text
    made = sqlite_store.experiments.get(answer.json()["id"])
    assert made.spec.earlier["notes"] == [
        f"did not learn from {source.public_id}: no experiment {source.public_id}",
        "nothing was learned from any of them, so warm_start has no effect",
    ]
    asked = {"changes": {"warm_start": [source.public_id]}}
    refused = await client.post(f"{EXPERIMENTS}/{first}/fork", json=asked)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/warm_start/0")
