"""Functions that come with a spec over REST."""

from __future__ import annotations

import base64
import platform
import re
from typing import Any

import httpx
import pytest

from tests.api.conftest import SPEC, app, client, poked
from tests.store.examples import a_spec
from tuner.experiment.code import by_value
from tuner.store import CodeRecord, Store
from tuner.usercode.pickling import dumps
from tuner.usercode.trainable import by_value as pickled

__all__ = ["app", "client", "poked"]

EXPERIMENTS = "/api/v1/experiments"


def train(config: dict[str, Any]) -> None:
    """Train nothing."""


def spec(**function: Any) -> dict[str, Any]:
    whole = {**SPEC, "function": {**by_value.written(pickled(train)), **function}}
    del whole["entrypoint"]
    return whole


async def test_a_function_is_stored_as_it_came(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    answer = await client.post(EXPERIMENTS, json=spec())
    assert answer.status_code == 201, answer.text
    assert answer.json()["entrypoint"] is None
    record = sqlite_store.experiments.get(answer.json()["id"])
    sent = pickled(train)
    assert record.spec.code is not None
    stored = sqlite_store.code.get(record.spec.code)
    assert (stored.blob, stored.python, list(stored.sys_path)) == (sent.blob, sent.python, list(sent.sys_path))
    dry = await client.post(f"{EXPERIMENTS}/dry-run", json=spec())
    assert dry.status_code == 200


@pytest.mark.parametrize(
    ("function", "pointer", "message"),
    [
        ({"pickle": "?"}, "/function/pickle", "expected base64"),
        ({"pickle": 7}, "/function/pickle", "expected a string"),
        ({"python": "3.1.4"}, "/function/python", f"pickled by Python 3.1.4.*have Python {platform.python_version()}"),
        ({"shell": "sh"}, "/function/shell", "unknown field"),
        (
            {"pickle": base64.b64encode(bytes(by_value.MAX_BYTES + 1)).decode()},
            "/function/pickle",
            "a service takes at most 10 MB",
        ),
    ],
)
async def test_mistakes(
    client: httpx.AsyncClient, function: dict[str, Any], pointer: str, message: str, sqlite_store: Store
) -> None:
    answer = await client.post(EXPERIMENTS, json={**spec(**function), "num_workers": 2})
    assert answer.status_code == 422
    errors = {one["pointer"]: one["message"] for one in answer.json()["errors"]}
    assert set(errors) == {pointer, "/num_workers"}, "all mistakes at once"
    assert re.search(message, errors[pointer])
    assert sqlite_store.experiments.page().items == ()


async def test_an_entrypoint_and_a_function_are_too_much(client: httpx.AsyncClient) -> None:
    answer = await client.post(EXPERIMENTS, json={**spec(), "entrypoint": SPEC["entrypoint"]})
    assert answer.json()["errors"] == [
        {"pointer": "/function", "message": "expected an entrypoint or a function, got both"}
    ]
    neither = {name: value for name, value in SPEC.items() if name != "entrypoint"}
    answer = await client.post(EXPERIMENTS, json=neither)
    assert answer.json()["errors"][0]["pointer"] == "/entrypoint"


async def test_the_ranks_own_python_may_be_another_one(client: httpx.AsyncClient) -> None:
    elsewhere = {"image_uri": "docker://python:3.1"}
    answer = await client.post(EXPERIMENTS, json={**spec(python="3.1.4"), "runtime_env": elsewhere})
    assert answer.status_code == 201, answer.text


async def test_a_key_goes_with_one_function(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "once"}
    first = await client.post(EXPERIMENTS, json=spec(), headers=key)
    again = await client.post(EXPERIMENTS, json=spec(), headers=key)
    assert again.json()["id"] == first.json()["id"]
    other = by_value.written(pickled(lambda config: None))
    answer = await client.post(EXPERIMENTS, json={**spec(), "function": other}, headers=key)
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "the idempotency key 'once' was used before, with another spec",
    )


def test_only_the_code_of_functions_needs_the_python_that_pickled_it() -> None:
    def own(config: dict[str, Any]) -> None: ...

    def needs(**changes: Any) -> str | None:
        options = {name: changes.pop(name) for name in ("executor", "runtime_env") if name in changes}
        return by_value.needs_other_python(a_spec(**options), CodeRecord(**{"hash": "x", "python": "3.1.4", **changes}))

    code = dumps(own)
    assert "continue it with Python 3.1" in (needs(blob=code) or "")
    assert needs(space_blob=dumps([own]))
    assert needs(parts_blob=dumps({"nested": code}))
    assert needs(space_blob=code, executor="agents")
    assert needs(blob=code, executor="agents") is None, "agents have functions of their own"
    assert needs(blob=code, runtime_env={"conda": "old"}) is None
    assert needs(blob=dumps(train)) is None, "it is imported"
    assert needs(blob=code, python=platform.python_version()) is None
    assert needs(blob=code, python="") is None
    assert by_value.needs_other_python(a_spec(), None) is None
