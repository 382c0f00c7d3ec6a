"""Test that many requests share the thread and the transaction that create experiments, and do not affect each other."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response

from tests.store.examples import a_spec
from tuner.api.creations import QUICK_BYTES, Creations, is_quick
from tuner.experiment.operations import usecases
from tuner.experiment.operations.earlier import ProjectFacts
from tuner.store import Creation, ExperimentRecord, Store
from tuner.store.service.access import AuditRecord
from tuner.store.sql.cursor import Cursor
from tuner.store.sql.database import Share

API = "/api/v1/experiments"
MANY = 50


async def test_requests_that_arrive_together_share_transactions(
    app: FastAPI, client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await client.post(API, json=spec)).raise_for_status()  # the entrypoint is imported
    begun, may_begin = threading.Event(), threading.Event()
    database = sqlite_store._database
    write, count = database.write, 0
    settings, asked = sqlite_store.projects.settings, 0

    def asking(project: str) -> Any:
        nonlocal asked
        asked += 1
        return settings(project)

    monkeypatch.setattr(sqlite_store.projects, "settings", asking)

    @contextmanager
    def counting() -> Iterator[Cursor]:
        nonlocal count
        count += 1
        begun.set()
        may_begin.wait(30)
        with write() as cursor:
            yield cursor

    monkeypatch.setattr(database, "write", counting)
    # The audit trail has transactions of its own.
    monkeypatch.setattr(app.state.context.authenticator, "note", _no_note)
    first = asyncio.create_task(client.post(API, json={**spec, "name": "first"}))
    await asyncio.to_thread(begun.wait, 30)
    bodies = [{**spec, "name": f"name {number}"} for number in range(MANY)]
    bodies[3] = {**spec, "metric": 7}
    others = [asyncio.create_task(client.post(API, json=body)) for body in bodies]
    creations = app.state.context.creations
    while len(creations._waiting) < MANY:
        await asyncio.sleep(0.001)
    others[5].cancel()  # the client is gone
    may_begin.set()
    assert (await first).status_code == 201
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(answers[5], asyncio.CancelledError)
    rest = [(body, answer) for body, answer in zip(bodies, answers, strict=True) if isinstance(answer, httpx.Response)]
    assert [answer.status_code for _, answer in rest] == [422 if body["metric"] == 7 else 201 for body, _ in rest]
    assert all(answer.json()["name"] == body["name"] for body, answer in rest if answer.status_code == 201)
    assert count == 2, "the first one alone, and then a transaction for all that waited"
    assert asked == 2, "each transaction reads the settings of its projects once"


async def test_a_slow_import_delays_no_other_request(
    client: httpx.AsyncClient, spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await client.post(API, json=spec)).raise_for_status()
    done = tmp_path / "done"
    (tmp_path / "slow_to_import.py").write_text(
        "import os, time\n"
        f"while not os.path.exists({str(done)!r}):\n    time.sleep(0.01)\n"
        "def train(config):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)  # where entrypoints are looked for
    (await client.post(API, json=spec)).raise_for_status()
    slow = asyncio.create_task(client.post(API, json={**spec, "entrypoint": "slow_to_import:train"}, timeout=60))
    begun = time.monotonic()
    for _ in range(5):
        assert (await client.post(API, json=spec)).status_code == 201
    assert not slow.done()
    assert time.monotonic() - begun < 30
    done.touch()
    assert (await slow).status_code == 201


async def test_an_experiment_that_learns_by_its_project_is_not_made_among_the_others(
    app: FastAPI, client: httpx.AsyncClient, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (await client.post(API, json=spec)).raise_for_status()
    (await client.patch("/api/v1/projects/default", json={"warm_start": "auto"})).raise_for_status()
    threads: list[str] = []
    real = usecases.with_earlier  # type: ignore[attr-defined]

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(*args, **kwargs)

    monkeypatch.setattr(usecases, "with_earlier", noted)
    (await client.post(API, json=spec)).raise_for_status()
    (await client.post(API, json={**spec, "warm_start": None})).raise_for_status()
    assert [name.split("_")[0] for name in threads] == ["check", "create"]


async def test_a_used_key_gets_the_first_answer_beside_others(
    client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store
) -> None:
    (await client.post(API, json=spec)).raise_for_status()
    keyed = {"Idempotency-Key": "one"}
    sent = [client.post(API, json=spec, headers=keyed) for _ in range(5)]
    sent += [client.post(API, json={**spec, "seed": 77}, headers=keyed), client.post(API, json=spec)]
    answers = await asyncio.gather(*sent)
    assert [answer.status_code for answer in answers] == [201] * 5 + [409, 201]
    assert len({answer.json()["id"] for answer in answers[:5]}) == 1
    assert len(sqlite_store.experiments.page().items) == 3


async def test_a_request_that_creates_nothing_waits_for_no_writer(
    app: FastAPI, client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = {"Idempotency-Key": "one"}
    (await client.post(API, json=spec, headers=keyed)).raise_for_status()
    monkeypatch.setattr(
        app.state.context.authenticator, "note", _no_note
    )  # the audit trail has transactions of its own
    begun, write = [], sqlite_store._database.write

    def writing() -> Any:
        begun.append("a transaction")
        return write()

    monkeypatch.setattr(sqlite_store._database, "write", writing)
    sent = [client.post(API, json=spec, headers=keyed), client.post(API, json={**spec, "metric": 7})]
    assert [answer.status_code for answer in await asyncio.gather(*sent)] == [201, 422]
    assert begun == []
    (await client.post(API, json=spec)).raise_for_status()
    assert begun == ["a transaction"]


async def test_a_service_that_ends_refuses_requests_at_once(
    app: FastAPI, client: httpx.AsyncClient, spec: dict[str, Any]
) -> None:
    made = (await client.post(API, json=spec)).raise_for_status().json()
    app.state.context.end()
    long = {**spec, "notes": "x" * QUICK_BYTES}  # is handled in another thread
    for _ in range(2):
        for refused in (client.post(API, json=spec), client.post(API, json=long), client.delete(f"{API}/{made['id']}")):
            answer = await asyncio.wait_for(refused, 30)
            assert (answer.status_code, answer.json()["detail"]) == (503, "the service is shutting down")
            assert "retry-after" in answer.headers
    unready = await client.get("/readyz")
    assert (unready.status_code, unready.json()["problems"]) == (503, ["the service is shutting down"])


async def test_requests_that_wait_when_the_service_ends_are_answered(sqlite_store: Store) -> None:
    creations, may_check = Creations(sqlite_store), threading.Event()

    def check(_: ProjectFacts) -> Creation:
        assert may_check.wait(30)
        return sqlite_store.experiments.creation(a_spec())

    waits = [asyncio.create_task(creations.create(check, _shown)) for _ in range(MANY)]
    await asyncio.sleep(0)  # all of them have begun
    creations.close()
    refused = await asyncio.wait_for(creations.create(check, _shown), 30)
    may_check.set()
    answers = await asyncio.wait_for(asyncio.gather(*waits), 30)
    assert [refused.status_code, *(answer.status_code for answer in answers)] == [503] + [201] * MANY


async def test_an_error_of_the_thread_is_the_answer_and_the_next_request_is_served(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    creations = Creations(sqlite_store)

    def fails(*shares: object) -> None:
        raise MemoryError

    def check(_: ProjectFacts) -> Creation:
        return sqlite_store.experiments.creation(a_spec())

    with monkeypatch.context() as failing:
        failing.setattr(sqlite_store.experiments, "create_all", fails)
        with pytest.raises(MemoryError):
            await asyncio.wait_for(creations.create(check, _shown), 30)
    assert (await asyncio.wait_for(creations.create(check, _shown), 30)).status_code == 201
    creations.close()


async def test_the_audit_trail_gets_its_entry_in_the_transaction_that_creates_the_experiment(
    app: FastAPI, client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await client.post(API, json=spec)).raise_for_status()
    apart: list[AuditRecord] = []
    monkeypatch.setattr(app.state.context.authenticator, "note", functools.partial(_noted, apart))
    keyed = {"Idempotency-Key": "one"}
    answers = await asyncio.gather(
        *(client.post(API, json=spec, headers=keyed) for _ in range(3)),
        client.post(API, json={**spec, "seed": 77}, headers=keyed),
        client.post(API, json={**spec, "metric": 7}),
        client.post(API, json=spec),
    )
    assert [answer.status_code for answer in answers] == [201, 201, 201, 409, 422, 201]
    within = [entry for _, entry in sqlite_store.access.trail()][:-1]
    both = Counter((entry.status, entry.created) for entry in (*within, *apart))
    assert both == Counter((answer.status_code, answer.json().get("id")) for answer in answers)
    ids = {entry.created for entry in within}
    assert ids == {record.public_id for record in sqlite_store.experiments.page().items[:2]}
    assert [(entry.method, entry.path, entry.actor) for entry in within] == [("POST", API, "local")] * len(within)


async def test_an_entry_that_cannot_be_written_with_the_experiment_is_written_on_its_own(
    client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await client.post(API, json=spec)).raise_for_status()
    entries = sqlite_store.access.entries

    def fails(records: Callable[[], Iterable[AuditRecord]]) -> Share[None]:
        share = entries(records)

        def work(cursor: Cursor) -> None:
            share.work(cursor)
            raise RuntimeError("broken")

        return Share(work, share.order)

    with monkeypatch.context() as failing:
        failing.setattr(sqlite_store.access, "entries", fails)
        sent = [client.post(API, json={**spec, "name": f"name {number}"}) for number in range(3)]
        answers = await asyncio.gather(*sent)
    assert [answer.status_code for answer in answers] == [201] * 3
    trail = [entry.created for _, entry in sqlite_store.access.trail()][:-1]
    assert Counter(trail) == Counter(answer.json()["id"] for answer in answers)


@pytest.mark.parametrize(
    ("changes", "size", "quick"),
    [
        ({}, 100, True),
        ({"runtime_env": {}}, 100, True),
        ({"runtime_env": {"working_dir": "/x"}}, 100, False),
        ({"warm_start": "auto"}, 100, False),
        ({"bundle": "0" * 64}, 100, False),
        ({"command": "train.py"}, 100, False),
        ({}, QUICK_BYTES + 1, False),
    ],
)
def test_requests_that_may_take_long_are_not_quick(changes: dict[str, Any], size: int, quick: bool) -> None:
    assert is_quick({"entrypoint": "module:train", **changes}, size) is quick


def test_the_creation_of_an_experiment_is_an_error_only_where_it_is_read(store: Store) -> None:
    fine = store.experiments.creation(a_spec(name="fine"), idempotency_key="key")
    other = store.experiments.creation(a_spec(name="other"), idempotency_key="key")
    store.experiments.create_all([fine, other])
    assert store.experiments.created(fine).spec.name == "fine"
    with pytest.raises(Exception, match="the idempotency key 'key' was used before"):
        store.experiments.created(other)


def _shown(record: ExperimentRecord) -> Response:
    return Response(record.public_id, 201)


async def _no_note(record: object) -> None:
    pass


async def _noted(notes: list[AuditRecord], record: AuditRecord) -> None:
    notes.append(record)
