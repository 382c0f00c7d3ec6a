"""/experiments, as docs/api.md says."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import re
import sys
import threading
import time
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from fastapi import FastAPI

import tuner
from tests.api.columns import from_columns
from tests.api.conftest import Poked
from tests.driver.bench import Bench
from tests.driver.core.state.test_leaderboard import CONSTRAINED
from tests.driver.stored import stored
from tests.store.examples import T0, a_report, a_spec, a_trial, begin
from tests.web.searches import SHAPES, Search, bred, digits
from tuner.api import schemas
from tuner.api.routes.experiments import evaluation
from tuner.api.schemas.experiments import _kept as kept_forms
from tuner.domain import events
from tuner.domain.batch import Batch
from tuner.domain.decisions import Finish, Stop
from tuner.domain.events import CheckpointInfo
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState, TrialState
from tuner.errors import CheckerBusy, SpecError
from tuner.experiment.analysis import replay as replays
from tuner.store import Store

API = "/api/v1/experiments"


async def test_creating_answers_with_the_experiment_and_where_it_is(
    client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store, poked: Poked
) -> None:
    response = await client.post(API, json=spec)
    made = response.json()
    assert (response.status_code, response.headers["location"], poked.count) == (201, f"{API}/{made['id']}", 1)
    expected = {
        name: spec[name]
        for name in ("name", "metric", "mode", "num_samples", "seed", "search", "scheduler", "space", "entrypoint")
    }
    assert {name: made[name] for name in expected} == expected
    assert made["state"] == "pending"
    assert made["counts"] == dict.fromkeys(TrialState, 0)
    assert (made["trials"], made["best"], made["error"], made["started_at"], made["metrics"]) == (
        0,
        None,
        None,
        None,
        [],
    )
    assert made["scaling"]["resources_per_worker"] == {"CPU": 0.5}
    assert datetime.fromisoformat(made["created_at"]).utcoffset().total_seconds() == 0  # type: ignore[union-attr]
    assert (await client.get(response.headers["location"])).json() == made

    stored = sqlite_store.experiments.get(made["id"])
    assert stored.code_hash is not None
    assert stored.source == "api"
    assert sqlite_store.code.get(stored.code_hash).sys_path
    assert [e.public_id for e in sqlite_store.drivers.claimable(T0)] == [made["id"]]


async def test_new_experiments_do_not_take_the_places_of_those_that_a_list_shows(
    client: httpx.AsyncClient, spec: dict[str, Any]
) -> None:
    assert (await client.post(API, json=spec)).status_code == 201
    await client.get(API)
    before = kept_forms.cache_info()
    for number in range(3):
        assert (await client.post(API, json={**spec, "name": f"new {number}"})).status_code == 201
    assert kept_forms.cache_info() == before
    await client.get(API)
    after = kept_forms.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses + 3)


async def test_a_range_of_workers_makes_elastic_trials(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    elastic = {**spec, "scaling": {"num_workers": {"min": 1, "max": 8}, "resources_allocation": "top"}}
    made = (await client.post(API, json=elastic)).json()
    scaling = made["scaling"]
    assert (scaling["num_workers"], scaling["max_workers"], scaling["resources_allocation"]) == (1, 8, "top")
    assert (await client.post(f"{API}/dry-run", json=elastic)).status_code == 200
    refused = await client.post(API, json={**elastic, "executor": "agents"})
    assert "elastic trials need Ray" in refused.text


async def test_what_auto_was_resolved_to_stands_beside_what_was_asked_for(
    client: httpx.AsyncClient, spec: dict[str, Any]
) -> None:
    given = {name: spec[name] for name in ("entrypoint", "space", "metric", "mode")}
    made = (await client.post("/api/v1/experiments", json={**given, "max_t": 27, "num_samples": 50})).json()
    assert (made["scheduler"], made["search"]) == ({"type": "auto"}, {"type": "auto"})
    assert made["resolved"]["scheduler"].items() >= {"type": "freeze_thaw", "max_t": 27, "budget": 10}.items()
    assert made["resolved"]["search"] is None, "the scheduler proposes configurations"
    assert made["method"] == "freeze_thaw (auto)"
    for scheduler, search, method in (
        ({"type": "auto"}, {"type": "qmc"}, "qmc + asha (auto)"),
        ({"type": "asha"}, {"type": "auto"}, "random (auto) + asha"),
        ({"type": "asha"}, {"type": "tpe"}, "tpe + asha"),
    ):
        asked = {**given, "max_t": 27, "scheduler": scheduler, "search": search}
        made = (await client.post("/api/v1/experiments", json=asked)).json()
        assert made["method"] == method
    [*_, first] = (await client.get("/api/v1/experiments")).json()["items"]
    assert first["method"] == "freeze_thaw (auto)"
    both = {**given, "num_samples": 50}
    assert (await client.post("/api/v1/experiments", json=both)).json()["method"] == "gp + fifo (auto)"


async def test_a_replay_gets_the_first_answer_though_the_file_is_gone_and_the_experiment_has_run(
    client: httpx.AsyncClient, sqlite_store: Store, spec: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "soon_gone.py"
    file.write_text("def train(config): ...")
    spec = {**spec, "entrypoint": "soon_gone:train", "runtime_env": {"working_dir": str(tmp_path)}}
    key = {"Idempotency-Key": "replayed"}
    first = await client.post(API, json=spec, headers=key)
    file.unlink()
    made = sqlite_store.experiments.get(first.json()["id"])
    epoch = sqlite_store.drivers.claim(made.id, "driver", 60.0, T0)
    batch = Batch(log=[], trials=[a_trial()], state=ExperimentState.RUNNING, summary={"counts": {"running": 1}})
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)

    again = await client.post(API, json=spec, headers=key)
    assert (again.status_code, again.json()) == (201, first.json())
    assert (again.headers["ETag"], again.headers["Location"]) == (first.headers["ETag"], first.headers["Location"])
    other = await client.post(API, json={**spec, "seed": 2}, headers=key)
    assert other.status_code == 409


async def test_experiments_are_replayed_one_at_a_time(
    app: FastAPI, client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replay computes in a thread of the service. With three at once, other requests took four times as long."""
    begin(sqlite_store)

    def replay(*given: Any, **options: Any) -> None:
        raise SpecError(f"others wait: {app.state.context.replaying.locked()}")

    monkeypatch.setattr("tuner.api.routes.experiments.evaluation.replays.replay", replay)
    asked = [client.post(f"{API}/digits/replay", json={"scheduler": "asha"}) for _ in range(2)]
    assert ["others wait: True" in answer.json()["detail"] for answer in await asyncio.gather(*asked)] == [True, True]
    assert not app.state.context.replaying.locked()


async def test_a_replay_that_takes_too_long_or_that_nobody_waits_for_is_given_up(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other replays wait for it."""
    record, epoch, trials = begin(sqlite_store)
    batch = Batch(log=[(4, a_report(0, 1)), (5, a_report(0, 2))], trials=trials, state=None)
    sqlite_store.drivers.commit(record.id, epoch, batch, T0)
    body = {"scheduler": "asha"}
    assert (await client.post(f"{API}/digits/replay", json=body)).status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "REPLAY_S", -1.0)
        refused = await client.post(f"{API}/digits/replay", json=body)
        assert (refused.status_code, "tuner.replay in Python" in refused.text) == (422, True)
    begun, given_up = threading.Event(), threading.Event()

    def replay(*given: Any, check: Any, **options: Any) -> None:
        begun.set()
        with contextlib.suppress(CheckerBusy):
            while True:
                check()
        given_up.set()

    monkeypatch.setattr(replays, "replay", replay)
    asked = asyncio.create_task(client.post(f"{API}/digits/replay", json=body))
    assert await asyncio.to_thread(begun.wait, 60)
    asked.cancel()
    assert await asyncio.to_thread(given_up.wait, 60)


async def test_the_etag_of_a_new_experiment_works_in_if_match(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    made = await client.post(API, json=spec)
    forked = await client.post(f"{API}/{made.json()['id']}/fork", json={})
    for one in (made, forked):
        for status in (200, 412):  # the second change comes too late
            url, tag = f"{API}/{one.json()['id']}", {"If-Match": one.headers["etag"]}
            assert (await client.patch(url, json={"notes": "mine"}, headers=tag)).status_code == status


async def test_the_same_idempotency_key_answers_the_same(client: httpx.AsyncClient, spec: dict[str, Any]) -> None:
    first, second = [await client.post(API, json=spec, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    other = await client.post(API, json={**spec, "seed": 2}, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.headers["content-type"]) == (409, "application/problem+json")
    assert len((await client.get(API)).json()["items"]) == 1


async def test_every_mistake_is_named_at_once(
    client: httpx.AsyncClient, spec: dict[str, Any], sqlite_store: Store, poked: Poked
) -> None:
    spec["space"] = {"lr": {"type": "loguniform", "lower": 0, "upper": 0.1}}
    spec["scheduler"] = {"type": "asha", "max_T": 27}
    spec["search_alg"] = "tpe"
    response = await client.post(API, json=spec)
    problem = response.json()
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert (problem["status"], problem["title"]) == (422, "Unprocessable Entity")
    messages = {error["pointer"]: error["message"] for error in problem["errors"]}
    assert set(messages) == {"/space/lr/lower", "/scheduler/max_T", "/search_alg"}
    assert "did you mean max_t?" in messages["/scheduler/max_T"]
    assert "did you mean search?" in messages["/search_alg"]
    assert "scheduler.max_T" in problem["detail"]
    assert (sqlite_store.experiments.page().items, poked.count) == ((), 0)


@pytest.mark.parametrize(
    ("entrypoint", "says"),
    [
        ("tests.api.trainables:trian", "did you mean 'train'?"),
        ("tests.api.nothing:train", "ModuleNotFoundError"),
        ("tests.api.trainables:Any.nothing", "has no"),
        ("no colon", "module:function"),
        ("__import__('os').system('true'):x", "module:function"),
        (None, "is required"),
    ],
)
async def test_an_entrypoint_that_cannot_be_imported_says_so_at_once(
    client: httpx.AsyncClient, spec: dict[str, Any], entrypoint: str | None, says: str
) -> None:
    response = await client.post(API, json={**spec, "entrypoint": entrypoint})
    [error] = response.json()["errors"]
    assert (response.status_code, error["pointer"]) == (422, "/entrypoint")
    assert says in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": NaN}', b"[" * 100_000, b'"\xff"', b"null", b"[]", b"1e999"])
async def test_a_body_that_is_no_object_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post(API, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["message"]


async def test_the_list_is_newest_first_in_pages(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made = [sqlite_store.experiments.create(a_spec(f"n{n}")).public_id for n in range(3)]
    first = (await client.get(API, params={"page_size": 2})).json()
    second = (await client.get(API, params={"page_size": 2, "page_token": first["next_page_token"]})).json()
    assert [e["id"] for e in first["items"] + second["items"]] == made[::-1]
    assert second["next_page_token"] is None
    assert [e["name"] for e in (await client.get(API, params={"name": "1"})).json()["items"]] == ["n1"]
    assert (await client.get(API, params={"state": "running"})).json()["items"] == []


OTHER_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "refused space": (
        {"space": {"lr": {"type": "loguniform", "lower": -1, "upper": 1}}},
        "not accept.* space.lr.lower: a log",
    ),
    "space of a newer version": (
        {"space": {"lr": {"type": "moon", "rose": 1}}},
        "not accept.* space.lr.type: unknown type 'moon'",
    ),
    "new field": ({"moon": "rose"}, r"not know \(moon\), since another version"),
    "new option": (
        {"limits": {"moon": 1}, "objectives": [{"metric": "x", "mode": "max", "rose": 1}]},
        "limits.moon, objectives.rose",
    ),
    "new value": ({"executor": "moon"}, r"not know \(executor\)"),
    "new mode": ({"objectives": [{"metric": "x", "mode": "near"}]}, r"not know \(objectives.mode\)"),
    "new form": (
        {"scaling": 5, "scheduler": "moon", "space": [1], "objectives": None},
        "space, scheduler, scaling, objectives",
    ),
    "wrong number": ({"max_t": "long"}, r"not know \(max_t\)"),
    "no number": ({"num_samples": {}}, r"not know \(num_samples\)"),
    "wrong number inside": ({"limits": {"max_failures": "many"}}, r"not know \(limits.max_failures\)"),
    "wrong section": ({"limits": 5}, r"not know \(limits\)"),
    "wrong choice": ({"resolved": {"scheduler": 5, "search": None}}, r"not know \(resolved.scheduler\)"),
    "wrong number in a list": ({"points_to_evaluate": [1], "tags": {"a": 1}}, r"not know \(points_to_evaluate, tags\)"),
}
"""Specs that another version has written: what differs from one of this version, and what is said about it."""
PARTS = ("trials", "trials?sort=front", "trials/sample", "segments", "checkpoints", "decisions", "log", "best", "pareto",
         "curves?metric=x", "best-so-far", "importance", "timeline", "forecast", "spec", "hypervolume?reference=0")  # fmt: skip
"""The routes that the page reads of an experiment."""
OTHER_VALUES = {
    "counts 1": '{"completed": "many"}',
    "counts 2": '{"moon": {}}',
    "best 1": '{"trial_number": "x"}',
    "best 2": '{"trial_number": 0, "value": "x"}',
    "best 3": '{"trial_number": 0, "value": 1, "finished": {"value": 1}}',
    "best 4": '{"trial_number": 0, "value": 1, "runs": {"mean": 1}}',
    "pauses 1": "[1]",
    "pauses 2": "[[1]]",
    "pauses 3": '[["x", 1]]',
}
"""JSON whose inner values another version has written in other types."""
OTHER_ROWS = {
    "changed": r"\((moon, limits.rose)\)",
    **{
        f"damaged {column}": f"cannot read {column} in the experiment's row"
        for column in ("spec", "changes", "counts", "best", "pauses")
    },
    **{f"other {name}": f"cannot read {name[:-2]} in the experiment's row" for name in OTHER_VALUES},
    "new state": r"state that this version of tuner does not know \(resting\)",
}
"""Rows with other columns that another version has written, or whose text is not JSON: what is said about each."""


async def test_a_spec_of_another_version_takes_no_other_experiment_with_it(
    client: httpx.AsyncClient, sqlite_store: Store, spec: dict[str, Any]
) -> None:
    """One experiment that an earlier version had accepted made the whole list, and each creation, fail with 422."""
    made = {
        name: sqlite_store.experiments.create(digits(name)).public_id for name in ("fine", *OTHER_SPECS, *OTHER_ROWS)
    }
    best = '{"trial_number": 0, "value": 0.9, "iteration": 1, "params": {"lr": 0.01}}'
    with sqlite_store._database.write() as cursor:
        cursor.execute("UPDATE experiment SET best = ?, counts = ?", (best, '{"completed": 30}'))
        cursor.execute(
            "UPDATE experiment SET changes = ? WHERE name = 'changed'", ('{"limits": {"rose": 1}, "moon": 2}',)
        )
        for column in ("spec", "changes", "counts", "best", "pauses"):
            broken = "5" if column == "pauses" else '{"name": '
            cursor.execute(f"UPDATE experiment SET {column} = ? WHERE name = ?", (broken, f"damaged {column}"))
        for name, value in OTHER_VALUES.items():
            cursor.execute(f"UPDATE experiment SET {name[:-2]} = ? WHERE name = ?", (value, f"other {name}"))
        cursor.execute(
            "UPDATE experiment SET state = 'resting', counts = ? WHERE name = 'new state'", ('{"moon": 30}',)
        )
        for name, (differs, _) in OTHER_SPECS.items():
            [(text,)] = cursor.rows("SELECT spec FROM experiment WHERE name = ?", (name,))
            cursor.execute(
                "UPDATE experiment SET spec = ? WHERE name = ?", (json.dumps({**json.loads(text), **differs}), name)
            )
    called = {public_id: name for name, public_id in made.items()}
    for order in ("", "?sort=method", "?sort=best", "?sort=trials", "?sort=name"):
        response = await client.get(f"{API}{order}")
        assert response.status_code == 200, response.text
        listed = {called[one["id"]]: one for one in response.json()["items"]}
        assert listed.keys() == made.keys()
    assert listed["fine"]["unreadable"] is None
    for name, why in {
        **{name: why for name, (_, why) in OTHER_SPECS.items()},
        **OTHER_ROWS,
    }.items():
        shown = (await client.get(f"{API}/{made[name]}")).json()
        assert shown == listed[name]
        state, trials = ("paused", "paused") if name == "new state" else ("pending", "completed")
        assert (shown["state"], shown["counts"][trials]) == (state, 0 if "counts" in name else 30)
        for part in PARTS:
            answer = await client.get(f"{API}/{made[name]}/{part}")
            assert answer.status_code < 500, (name, part, answer.text)
        assert re.search(why, shown["unreadable"]), shown["unreadable"]
    verbs = {"new state": "resume", **dict.fromkeys(("new value", "wrong number", "damaged spec"), "continue")}
    for name, verb in verbs.items():
        with sqlite_store._database.write() as cursor:
            if verb == "continue":
                cursor.execute("UPDATE experiment SET state = 'completed' WHERE public_id = ?", (made[name],))
        assert {verb, "enqueue"}.isdisjoint((await client.get(f"{API}/{made[name]}")).json()["actions"])
        refused = await client.post(f"{API}/{made[name]}/{verb}", json={})
        assert refused.status_code == 409
        assert listed[name]["unreadable"][1:] in refused.json()["detail"]
    for name in ("damaged spec", "damaged changes", "wrong section"):
        asked = {"limits": {"max_failures": 3}}
        changed = await client.patch(f"{API}/{made[name]}", json=asked, headers={"If-Match": "*"})
        assert (changed.status_code, "cannot be changed: " in changed.json()["detail"]) == (409, True), changed.text
    renamed = await client.patch(f"{API}/{made['new option']}", json={"notes": "kept"}, headers={"If-Match": "*"})
    assert renamed.status_code == 200, "what this version knows can be changed"
    replayed = await client.post(f"{API}/{made['new option']}/replay", json={"scheduler": {"type": "fifo"}})
    assert (replayed.status_code, "not know (limits.moon" in replayed.json()["detail"]) == (422, True)
    for warm_start in (None, "auto"):  # both read the newest experiments
        assert (await client.post(API, json={**spec, "warm_start": warm_start})).status_code == 201
    refused = await client.post(API, json={**spec, "warm_start": ["refused space"]})
    assert refused.json()["errors"][0]["pointer"] == "/warm_start/0"
    forked = await client.post(f"{API}/{made['new field']}/fork", json={})
    assert (forked.status_code, "not know (moon)" in forked.json()["detail"]) == (409, True)
    copy = (await client.get(f"{API}/{made['new option']}/spec")).json()
    assert "/limits/moon" in [one["pointer"] for one in copy["left_out"]]


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("?page_size=0", "/page_size"),
        ("?page_size=x", "/page_size"),
        ("?page_token=x", "/page_token"),
        ("?state=gone", "/state"),
        ("/{id}/curves?x=steps", "/x"),
        ("/{id}/curves?points=1", "/points"),
        ("/{id}/decisions?trial=-1", "/trial"),
        ("/{id}/events?after=-1", "/after"),
    ],
)
async def test_a_wrong_query_points_at_the_parameter(
    client: httpx.AsyncClient, sqlite_store: Store, path: str, pointer: str
) -> None:
    made = sqlite_store.experiments.create(a_spec())
    response = await client.get(API + path.format(id=made.public_id))
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient) -> None:
    for path in ("exp_x", "exp_x/trials", "exp_x/curves", "exp_x/decisions", "exp_x/events", "a%00b", "😀"):
        response = await client.get(f"{API}/{path}")
        assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json"), path
    for action in ("cancel", "pause", "resume"):
        assert (await client.post(f"{API}/exp_x/{action}")).status_code == 404
    assert (await client.get("/api/v1/nothing")).status_code == 404
    assert (await client.delete(API)).status_code == 405


async def test_a_running_experiment_shows_its_trials(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 2)
    checkpoint = CheckpointInfo(id="ckp_1", uri="/c/1", step=2, bytes=9, node="5f" * 28)
    trials[0].iteration, trials[0].last, trials[0].best_value, trials[0].last_value = (
        2,
        {"accuracy": 0.5, "loss": math.inf},
        0.5,
        math.nan,
    )
    trials[0].state, trials[0].reason, trials[0].checkpoint = TrialState.STOPPED, "stopped at iteration 2", checkpoint
    best = {"trial_number": 0, "value": 0.5, "iteration": 2, "params": {"lr": 0.01}, "checkpoint_id": "ckp_1"}
    log = [
        (6, a_report(0, 1, accuracy=0.25, loss=math.nan)),
        (7, dataclasses.replace(a_report(0, 2, accuracy=0.5, loss=math.inf), checkpoint=checkpoint)),
        (8, Stop(reason="stopped at iteration 2", trial=0)),
    ]
    counts = {"running": 1, "stopped": 1}
    sqlite_store.drivers.commit(
        made.id, epoch, Batch(log=log, trials=trials, carried_out=[8], summary={"best": best, "counts": counts}), T0 + 3
    )

    found = (await client.get(f"{API}/{made.public_id}")).json()
    first = trial_id(made.public_id, 0)
    assert found["best"] == {**best, "trial_id": first, "finished": None, "objectives": [], "runs": None}
    assert (found["trials"], found["counts"]["stopped"], found["metrics"], found["last_event_seq"]) == (
        2,
        1,
        ["accuracy", "loss"],
        8,
    )

    [trial] = (await client.get(f"{API}/{made.public_id}/trials", params={"state": "stopped"})).json()["items"]
    assert (trial["id"], trial["number"], trial["experiment_id"]) == (first, 0, made.public_id)
    assert (trial["last"], trial["last_value"], trial["best_value"]) == ({"accuracy": 0.5, "loss": None}, None, 0.5)
    assert trial["checkpoint"] == {"id": "ckp_1", "uri": "/c/1", "step": 2, "bytes": 9, "node": "5f" * 28}
    assert "segments" not in trial

    curves = (await client.get(f"{API}/{made.public_id}/curves")).json()
    assert (curves["metric"], curves["mode"], curves["x"]) == ("accuracy", "max", "step")
    assert curves["series"] == [
        {
            "trial_id": first,
            "number": 0,
            "state": "stopped",
            "best_value": 0.5,
            "segments": [{"ordinal": 1, "cause": "start", "last_iteration": 2, "x": [1.0, 2.0], "y": [0.25, 0.5]}],
        }
    ]
    assert curves["best_so_far"] == {"x": [1.0, 2.0], "y": [0.25, 0.5]}
    loss = (await client.get(f"{API}/{made.public_id}/curves", params={"metric": "loss", "x": "time"})).json()
    assert loss["series"][0]["segments"][0] == {
        "ordinal": 1,
        "cause": "start",
        "last_iteration": 2,
        "x": [1.0, 2.0],
        "y": [None, None],
    }

    best = (await client.get(f"{API}/{made.public_id}/best-so-far")).json()
    until = best.pop("until")
    assert best == {"metric": "accuracy", "mode": "max", "x": [1.0, 2.0], "y": [0.25, 0.5]}
    assert until == pytest.approx(time.time() - T0, abs=60)
    trained = (await client.get(f"{API}/{made.public_id}/best-so-far", params={"x": "trial_time"})).json()
    assert (trained["x"], trained["y"]) == ([2.0, 4.0], [0.25, 0.5]), "two trials have trained all the time"
    assert (curves["width"], curves["left_out"]) == (1, 0)

    decisions = (await client.get(f"{API}/{made.public_id}/decisions", params={"trial": 0})).json()["items"]
    assert [(d["seq"], d["kind"], d["state"]) for d in decisions] == [(8, "stop", "done"), (2, "start", "pending")]
    assert decisions[0] | {"time": ""} == {
        "seq": 8, "time": "", "kind": "stop", "trial_number": 0, "trial_id": first, "reason": "stopped at iteration 2",
        "state": "done", "payload": {"trial": 0},
    }  # fmt: skip


async def test_decisions_can_be_filtered_by_kind_and_by_words_of_the_reason(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    made, epoch, trials = begin(sqlite_store, 2)
    log = [(6, Stop(reason="below the cut", trial=0)), (7, Finish(reason="all done"))]
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)

    async def found(**params: Any) -> list[int]:
        answer = await client.get(f"{API}/{made.public_id}/decisions", params=params)
        return [one["seq"] for one in answer.json()["items"]]

    assert await found(kind=["stop", "finish"]) == [7, 6]
    assert await found(text="The Cut") == [6]
    assert await found(kind=["start"], trial=1) == [4]
    refused = await client.get(f"{API}/{made.public_id}/decisions", params={"kind": "explode"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/kind/0")


async def test_the_log_has_every_entry_and_can_be_filtered(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    search = Search(sqlite_store, digits(trials=6), start=T0)
    search.advance(at_once=5)
    path = f"{API}/{search.public_id}/log"
    entries: list[dict[str, Any]] = []
    token: str | None = ""
    while token is not None:
        page = (await client.get(path, params={"page_size": 40, **({"page_token": token} if token else {})})).json()
        entries += page["items"]
        token = page["next_page_token"]
    assert [one["seq"] for one in entries] == list(range(len(entries), 0, -1))
    ended = [one for one in entries if one["kind"] == "segment_ended" and one["trial_number"] == 4]
    assert [one["data"]["outcome"] for one in ended] == ["failed", "failed"]
    assert SHAPES in ended[0]["data"]["failure"]["message"]
    assert (await client.get(path, params={"kind": "segment_ended", "trial": 4})).json()["items"] == ended
    reported = next(one for one in entries if one["kind"] == "reported")
    assert reported["data"]["metrics"].keys() == {"accuracy", "loss"}
    refused = await client.get(path, params={"kind": "explode"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/kind/0")


def test_the_kinds_of_log_entries_are_those_of_events() -> None:
    assert set(get_args(schemas.LogKind)) == {one.KIND for one in get_args(events.Event)} | {"decision"}


async def test_segments_say_whose_weights_they_went_on_from(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    search = bred(sqlite_store)
    items = [
        segment
        for number in range(len(search.core.trials))
        for segment in (await client.get(f"/api/v1/trials/{trial_id(search.public_id, number)}")).json()["segments"]
    ]
    listed: list[dict[str, Any]] = []
    token = ""
    while token is not None:
        page = await client.get(
            f"{API}/{search.public_id}/segments", params={"page_size": 3, "page_token": token or "0"}
        )
        listed += page.json()["items"]
        token = page.json()["next_page_token"]
    assert len(listed) == len(items)
    taken = [one for one in listed if one["cause"] == "exploit"]
    assert taken
    for one in taken:
        donor = search.core.trials[one["source_trial_number"]]
        assert donor.number != one["trial_number"]
        assert donor.segments[one["source_ordinal"] - 1].start_iteration <= one["start_iteration"]
    only = await client.get(f"{API}/{search.public_id}/segments", params={"cause": "exploit", "page_size": 1000})
    assert only.json()["items"] == taken
    assert (await client.get(f"{API}/exp_x/segments")).status_code == 404


async def test_an_answer_that_the_client_has_is_not_sent_again(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store)
    url = f"{API}/{made.public_id}"
    first = await client.get(url)
    again = await client.get(url, headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials), T0)
    changed = await client.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["last_event_seq"]) == (200, 4)


async def test_curves_at_the_resolution_of_a_screen(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store)
    log = [(3 + n, a_report(0, n, accuracy=n % 7 + (50.0 if n == 777 else 0.0))) for n in range(1, 2001)]
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
    url = f"{API}/{made.public_id}/curves"
    [series] = (await client.get(url, params={"points": 100})).json()["series"]
    assert len(series["segments"][0]["x"]) <= 100
    assert max(series["segments"][0]["y"]) == 50.0
    zoomed = (await client.get(url, params={"points": 100, "from": 770, "to": 780})).json()
    assert zoomed["width"] == 1
    assert zoomed["series"][0]["segments"][0]["x"] == list(range(769, 782))
    assert (await client.get(url, params={"from": "nan"})).status_code == 422


async def test_curves_that_the_client_has_are_not_even_read(
    client: httpx.AsyncClient, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, epoch, trials = begin(sqlite_store)
    url = f"{API}/{made.public_id}/curves"
    first = await client.get(url)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store.metrics, "curve_columns", None)
        again = await client.get(url, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[(4, a_report(0, 1))], trials=trials), T0)
    assert (await client.get(url, headers={"If-None-Match": first.headers["etag"]})).status_code == 200
    other = await client.get(url, params={"points": 10}, headers={"If-None-Match": first.headers["etag"]})
    assert other.status_code == 200


@pytest.mark.parametrize("x", ["step", "time", "user_step", "trial_time", "metric"])
async def test_curves_as_columns_are_those_of_the_json(client: httpx.AsyncClient, sqlite_store: Store, x: str) -> None:
    made, epoch, trials = begin(sqlite_store, 3)
    values = [0.25, math.nan, 0.5, math.inf, 0.125]
    over = {"x": x, **({"x_metric": "epoch"} if x == "metric" else {})}
    log = [
        (8 + number, dataclasses.replace(a_report(trial, n + 1, accuracy=value + trial, epoch=n / 2), step=10 * n))
        for number, (trial, (n, value)) in enumerate(product((0, 2), enumerate(values)))
    ]
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=log, trials=trials), T0)
    url = f"{API}/{made.public_id}/curves"
    plain = await client.get(url, params=over)
    columns = await client.get(url, params=over, headers={"Accept": "application/vnd.tuner.curves"})
    assert columns.headers["content-type"] == "application/vnd.tuner.curves"
    assert "Accept" in columns.headers["vary"]
    assert columns.headers["etag"] != plain.headers["etag"]
    assert from_columns(columns.content) == plain.json()
    assert sum(len(segment["x"]) for series in plain.json()["series"] for segment in series["segments"]) == 10
    nothing = await client.get(
        url, params={"metric": "unknown"}, headers={"Accept": "application/vnd.tuner.curves, */*"}
    )
    assert from_columns(nothing.content)["series"] == []


async def test_of_many_trials_the_best_curves_come(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 4)
    for trial, value in zip(trials, (0.1, 0.9, 0.5, 0.7), strict=True):
        trial.best_value = value
    log = [(10 + n, a_report(n, 1)) for n in range(4)]
    batch = Batch(log=log, trials=trials, summary={"counts": {"running": 4}})
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)
    url = f"{API}/{made.public_id}/curves"
    found = (await client.get(url, params={"limit": 2})).json()
    assert ([s["number"] for s in found["series"]], found["left_out"]) == ([1, 3], 2)
    named = (await client.get(url, params={"trial": [0, 2, 99]})).json()
    assert [s["number"] for s in named["series"]] == [0, 2]


async def test_a_sample_of_the_trials_has_the_same_trials_as_the_curves(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    made, epoch, trials = begin(sqlite_store, 6)
    for trial, value in zip(trials, (0.1, 0.9, 0.5, 0.7, 0.2, 0.6), strict=True):
        trial.best_value, trial.iteration = value, 4
        trial.state = TrialState.STOPPED if trial.number < 3 else TrialState.RUNNING
    log = [(10 + n, a_report(n, 1)) for n in range(6)]
    batch = Batch(log=log, trials=trials, summary={"counts": {"running": 6}})
    sqlite_store.drivers.commit(made.id, epoch, batch, T0)
    url = f"{API}/{made.public_id}"
    found = (await client.get(f"{url}/trials/sample", params={"size": 4})).json()
    assert [item["number"] for item in found["items"]] == [0, 1, 3, 5]
    assert (found["ranks"], found["total"]) == ([6, 1, 2, 3], 6)
    drawn = (await client.get(f"{url}/curves", params={"limit": 4})).json()
    assert [one["number"] for one in drawn["series"]] == [0, 1, 3, 5]
    whole = (await client.get(f"{url}/trials/sample")).json()
    assert (len(whole["items"]), whole["trained"]) == (6, None if made.spec.max_t is None else 12)


async def test_trials_come_sorted_and_filtered(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, epoch, trials = begin(sqlite_store, 5)
    for trial, value in zip(trials, (0.3, 0.1, 0.5, None, 0.2), strict=True):
        trial.best_value = value
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=trials), T0)
    url = f"{API}/{made.public_id}/trials"
    first = (await client.get(url, params={"sort": "-best_value", "page_size": 3})).json()
    assert ([t["number"] for t in first["items"]], first["total"]) == ([2, 0, 4], 5)
    query = {"sort": "-best_value", "page_size": 3, "page_token": first["next_page_token"]}
    second = (await client.get(url, params=query)).json()
    assert ([t["number"] for t in second["items"]], second["next_page_token"]) == ([1, 3], None)
    fitting = (await client.get(url, params={"where": ["params.lr>0.02", "best_value<=0.5"]})).json()
    assert ([t["number"] for t in fitting["items"]], fitting["total"]) == ([2, 4], 2)
    wrong = await client.get(url, params={"where": "best_valu>1"})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/where")
    assert (await client.get(url)).json()["total"] == 5


class TestCommands:
    async def test_a_command_is_a_row_and_a_poke(
        self, client: httpx.AsyncClient, sqlite_store: Store, poked: Poked
    ) -> None:
        made, _, _ = begin(sqlite_store)
        for action in ("pause", "resume", "cancel", "cancel"):
            response = await client.post(f"{API}/{made.public_id}/{action}")
            assert (response.status_code, response.json()["id"]) == (202, made.public_id)
        assert [c.command for c in sqlite_store.commands.pending([made.id])] == ["pause", "resume", "cancel"]
        assert poked.count == 4

    async def test_what_is_so_already_is_not_asked_for(self, client: httpx.AsyncClient, sqlite_store: Store) -> None:
        made, epoch, _ = begin(sqlite_store)
        sqlite_store.drivers.renew(made.id, epoch, 60.0, time.time())
        assert (await client.post(f"{API}/{made.public_id}/resume")).status_code == 202
        sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], state=ExperimentState.PAUSED), T0)
        assert (await client.post(f"{API}/{made.public_id}/pause")).status_code == 202
        assert sqlite_store.commands.pending([made.id]) == []

    async def test_an_ended_experiment_stays_ended(self, client: httpx.AsyncClient, sqlite_store: Store) -> None:
        made, epoch, _ = begin(sqlite_store)
        sqlite_store.drivers.commit(
            made.id, epoch, Batch(log=[(4, Finish(reason="done"))], state=ExperimentState.COMPLETED), T0
        )
        for action in ("cancel", "pause", "resume"):
            response = await client.post(f"{API}/{made.public_id}/{action}")
            assert (response.status_code, "completed" in response.json()["detail"]) == (409, True)
        assert sqlite_store.commands.pending([made.id]) == []


async def test_an_experiment_whose_script_is_gone_says_how_to_continue_it(
    client: httpx.AsyncClient, sqlite_store: Store, poked: Poked
) -> None:
    left = sqlite_store.experiments.create(a_spec(), now=T0)
    young = sqlite_store.experiments.create(a_spec())
    shown = (await client.get(f"{API}/{left.public_id}")).json()
    assert (shown["source"], shown["abandoned"]) == ("python", True)
    assert f"`tuner resume {left.public_id}`" in shown["next_step"]
    other = (await client.get(f"{API}/{young.public_id}")).json()
    assert (other["abandoned"], other["next_step"]) == (False, None), "its script may be starting"

    resumed = await client.post(f"{API}/{left.public_id}/resume")
    assert (resumed.status_code, poked.count) == (202, 1)
    assert (resumed.json()["source"], resumed.json()["abandoned"]) == ("adopted", False)
    assert [command.command for command in sqlite_store.commands.pending([left.id])] == ["resume"]


class TestFunctionsThatASpecNames:
    """Functions are checked in a helper process, never imported here."""

    @pytest.fixture
    def mine(self, tmp_path: Path) -> dict[str, Any]:
        """Return a runtime_env with a folder of the user's modules."""
        (tmp_path / "raises_at_import.py").write_text("raise RuntimeError('boom at import')")
        (tmp_path / "exits_at_import.py").write_text("import sys; sys.exit(3)")
        (tmp_path / "no_function.py").write_text("f = 3")
        (tmp_path / "good_stop.py").write_text("def f(number, metrics):\n    return metrics['training_iteration'] >= 3")
        return {"working_dir": str(tmp_path)}

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("raises_at_import:f", "RuntimeError: boom at import"),
            ("exits_at_import:f", "SystemExit: 3"),
            ("not_there:f", "No module named 'not_there'"),
            ("no_function:f", "no_function:f is not a function"),
            ("good_stop:g", "good_stop has no 'g'"),
            ("nonsense", 'expected "module:name"'),
        ],
    )
    @pytest.mark.parametrize("where", ["", "/dry-run"])
    async def test_a_bad_one_is_pointed_at(
        self, client: httpx.AsyncClient, spec: dict[str, Any], mine: dict[str, Any], name: str, says: str, where: str
    ) -> None:
        bad = {**spec, "stop": {"type": "function", "function": name}, "runtime_env": mine}
        answer = await client.post(API + where, json=bad)
        assert answer.status_code == 422, answer.text
        [error] = answer.json()["errors"]
        assert error["pointer"] == "/stop/function"
        assert says in error["message"]
        assert name.partition(":")[0] not in sys.modules

    async def test_each_is_pointed_at_wherever_it_stands(
        self, client: httpx.AsyncClient, spec: dict[str, Any], mine: dict[str, Any]
    ) -> None:
        stop = {"type": "combined", "stoppers": [{"accuracy": 0.9}, {"type": "function", "function": "no_function:f"}]}
        pbt = {"type": "pbt", "custom_explore_fn": "raises_at_import:f", "hyperparam_mutations": {}}
        answer = await client.post(API, json={**spec, "stop": stop, "scheduler": pbt, "runtime_env": mine})
        pointers = {error["pointer"] for error in answer.json()["errors"]}
        assert pointers == {"/stop/stoppers/1/function", "/scheduler/custom_explore_fn"}, answer.text

    async def test_a_good_one_is_taken_and_not_imported_here(
        self, client: httpx.AsyncClient, spec: dict[str, Any], mine: dict[str, Any]
    ) -> None:
        good = {**spec, "stop": {"type": "function", "function": "good_stop:f"}, "runtime_env": mine}
        assert (await client.post(f"{API}/dry-run", json=good)).status_code == 200
        made = await client.post(API, json=good)
        assert made.status_code == 201
        assert made.json()["stop"] == good["stop"]
        assert "good_stop" not in sys.modules


async def test_the_best_is_within_the_constraints_and_says_who_finished(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    bench = Bench(**CONSTRAINED, max_t=2)
    for number, size in ((0, 1.0), (1, 0.2)):
        bench.started(number)
        bench.reported(number, 0.1 + number, size=size)
    empty = stored(Bench(**CONSTRAINED), sqlite_store).public_id
    running = (await client.get(f"{API}/{stored(bench, sqlite_store).public_id}")).json()
    assert running["resolved"]["constraints"] == {"size": {"max": 0.25}}
    assert (running["best"]["trial_number"], running["best"]["value"], running["best"]["finished"]) == (1, 1.1, None)
    bench.reported(1, 1.2, size=0.1)
    made = stored(bench, sqlite_store).public_id
    best = (await client.get(f"{API}/{made}")).json()["best"]
    assert (best["value"], best["iteration"]) == (1.1, 1)
    assert (best["finished"]["trial_number"], best["finished"]["value"], best["finished"]["iteration"]) == (1, 1.2, 2)
    items = (await client.get(f"{API}/{made}/trials")).json()["items"]
    assert [item["feasible"] for item in items[:2]] == [False, True]
    assert items[1]["best_params"] == items[1]["params"]
    assert (await client.get(f"{API}/{empty}")).json()["no_best"] is None


async def test_why_there_is_no_best_trial_is_said(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    bench = Bench(**CONSTRAINED)
    bench.started(0)
    bench.reported(0, 0.1, size=1.0)
    found = (await client.get(f"{API}/{stored(bench, sqlite_store).public_id}")).json()
    assert found["best"] is None
    assert found["no_best"].startswith("no trial satisfies the constraints (size at most 0.25)")


async def test_labels_say_what_the_indices_of_choices_stand_for(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    bench = Bench(space={"layers": tuner.choice([[8, 8], [16]]), "x": tuner.choice([1, 2])})
    found = (await client.get(f"{API}/{stored(bench, sqlite_store).public_id}")).json()
    assert found["labels"] == {"layers": ["[8, 8]", "[16]"]}


async def test_the_timeline_has_a_row_for_each_trial_and_each_place_of_a_rank(
    client: httpx.AsyncClient, sqlite_store: Store
) -> None:
    search = bred(sqlite_store)
    found = (await client.get(f"{API}/{search.public_id}/timeline", params={"first": 2, "limit": 3})).json()
    assert [row["trial_number"] for row in found["trials"]] == [2, 3, 4]
    assert found["total"] == len(search.core.trials)
    assert found["duration_s"] > 0
    for row in found["trials"]:
        assert {"starting", "running"} <= {span["phase"] for span in row["spans"]}
        ends = [span["end"] for span in row["spans"]]
        assert [span["start"] for span in row["spans"]][1:] == pytest.approx(ends[:-1], abs=60)
        assert 0 <= row["spans"][0]["start"] <= ends[-1] <= found["duration_s"]
    devices = {(row["host"], row["name"]) for row in found["devices"]}
    assert devices == {(host, f"slot {n}") for host in ("10.0.0.4", "10.0.0.5") for n in (1, 2, 3)}
    assert sum(found["totals"].values()) > 0
    none = (await client.get(f"{API}/{search.public_id}/timeline", params={"first": 900})).json()
    assert (none["trials"], none["devices"], none["totals"]) == ([], [], {})
