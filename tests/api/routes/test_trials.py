from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from fastapi import FastAPI

from tests.api.conftest import Poked
from tests.store.examples import T0, begin
from tests.web.searches import bred
from tuner.domain.batch import Batch
from tuner.domain.decisions import Fail
from tuner.domain.events import Failure
from tuner.domain.keys import segment_id, trial_id
from tuner.domain.logs import LogChunk, cut
from tuner.domain.states import SegmentState, TrialState
from tuner.experiment import logs
from tuner.experiment.logs import LogReader
from tuner.store import Store, UsageSample


async def test_a_failed_trial_says_which_rank_and_why(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, epoch, [trial] = begin(sqlite_store)
    trial.failure = Failure(
        kind="user",
        message="ValueError: boom",
        cause="exception",
        rank=1,
        node="n1",
        traceback="Traceback",
        log_tail="last words",
    )
    trial.state, trial.reason = TrialState.FAILED, "gave up"
    trial.segments[0].ended_at, trial.segments[0].state = T0 + 4, SegmentState.FAILED
    sqlite_store.drivers.commit(
        made.id, epoch, Batch(log=[(4, Fail(reason="gave up", trial=0))], trials=[trial]), T0 + 5
    )
    found = (await client.get(f"/api/v1/trials/{trial_id(made.public_id, 0)}")).json()
    assert (found["state"], found["reason"], found["ended_at"][:10]) == ("failed", "gave up", "2023-11-14")
    assert found["error"] == {
        "kind": "user", "cause": "exception", "message": "ValueError: boom", "rank": 1, "node": "n1", "pid": None,
        "traceback": "Traceback", "log_tail": "last words", "stacks": {},
    }  # fmt: skip
    [segment] = found["segments"]
    assert (segment["id"], segment["ordinal"], segment["cause"]) == (segment_id(made.public_id, 0, 1), 1, "start")
    assert (segment["outcome"], segment["source_checkpoint_id"], segment["source_trial_number"]) == (
        "failed",
        None,
        None,
    )


async def test_stopping_one_trial(client: httpx.AsyncClient, sqlite_store: Store, poked: Poked) -> None:
    made, epoch, [trial] = begin(sqlite_store)
    url = f"/api/v1/trials/{trial_id(made.public_id, 0)}/stop"
    for _ in range(2):
        assert (await client.post(url)).status_code == 202
    assert [(c.command, c.trial) for c in sqlite_store.commands.pending([made.id])] == [("stop", 0)]
    assert poked.count == 2
    [command] = sqlite_store.commands.pending([made.id])
    trial.state = TrialState.STOPPED
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=[trial], commands=[command.id]), T0)
    assert (await client.post(url)).json()["state"] == "stopped"
    assert sqlite_store.commands.pending([made.id]) == []


async def test_logs_come_from_the_files_of_the_ranks(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path
) -> None:
    made, _, _ = begin(sqlite_store)
    folder = tmp_path / "logs" / made.public_id / segment_id(made.public_id, 0, 1)
    folder.mkdir(parents=True)
    for rank in (0, 1, 10):
        (folder / f"rank{rank}.log").write_text(f"one {rank}\ntwo {rank}\n")
    (folder / "rankX.log").write_text("not a rank's")
    url = f"/api/v1/trials/{trial_id(made.public_id, 0)}/logs"
    items = (await client.get(url)).json()["items"]
    assert [(i["segment"], i["rank"], i["stream"], i["text"]) for i in items] == [
        (1, rank, "output", f"one {rank}\ntwo {rank}\n") for rank in (0, 1, 10)
    ]
    [item] = (await client.get(url, params={"rank": 1, "tail": 1})).json()["items"]
    assert item["text"] == "two 1\n"
    assert (await client.get(url, params={"segment": 2})).json()["items"] == []


async def test_logs_of_the_database_come_first(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"from afar\n", T0), LogChunk.of(0, 10, b"", T0)]})
    url = f"/api/v1/trials/{trial_id(made.public_id, 0)}/logs"
    items = (await client.get(url)).json()["items"]
    assert items == [
        {
            "segment": 1, "rank": 0, "stream": "output", "text": "from afar\n",
            "start": 0, "end": 10, "left_out": 0, "complete": True,
        }
    ]  # fmt: skip
    assert (await client.get(f"{url}/text")).text == "from afar\n"
    assert (await client.get(f"{url}/text", params={"rank": 1})).text == ""
    assert (await client.get("/api/v1/trials/trl_nothing/logs/text")).status_code == 404


@pytest.mark.parametrize("place", ["database", "file"])
async def test_logs_are_read_on_and_searched(
    client: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path, place: str
) -> None:
    made, _, _ = begin(sqlite_store)
    content = "".join(f"Epoch {number}\n" for number in range(20_000)).encode()
    if place == "database":
        chunks = cut(lambda at, size: content[at : at + size], [(0, len(content))], 0, 0, T0)
        sqlite_store.logs.add(made.id, {(0, 1): list(chunks)})
    else:
        folder = tmp_path / "logs" / made.public_id / segment_id(made.public_id, 0, 1)
        folder.mkdir(parents=True)
        (folder / "rank0.log").write_bytes(content)
    url = f"/api/v1/trials/{trial_id(made.public_id, 0)}/logs"

    async def item(**query: Any) -> dict[str, Any]:
        [found] = (await client.get(url, params=query)).json()["items"]
        return dict(found)

    text, at = "", 0
    while (part := await item(offset=at, limit=100_000))["text"]:
        text, at = text + part["text"], part["end"]
    assert text.encode() == content
    assert (await item(tail=2))["text"] == "Epoch 19998\nEpoch 19999\n"
    assert (await item(search="epoch 1999", tail=3))["text"] == "Epoch 19997\nEpoch 19998\nEpoch 19999\n"
    assert (await client.get(f"{url}/text")).content == content
    for wrong in ({"search": ""}, {"offset": -1}, {"limit": 0}):
        assert (await client.get(url, params=wrong)).status_code == 422


async def test_a_log_is_followed_until_its_rank_prints_no_more(
    client: httpx.AsyncClient, server: str, sqlite_store: Store
) -> None:
    made, _, _ = begin(sqlite_store)
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"first\n", T0)]})
    url = f"{server}/api/v1/trials/{trial_id(made.public_id, 0)}/logs/text"
    async with httpx.AsyncClient() as real, real.stream("GET", url, params={"follow": True}) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "first"
        more = [LogChunk.of(0, 6, b"second\n", T0), LogChunk.of(0, 13, b"", T0)]
        sqlite_store.logs.add(made.id, {(0, 1): more})
        assert [line async for line in lines] == ["second"]


@pytest.mark.parametrize("follow", [True, False])
async def test_a_log_that_is_cut_says_that_the_service_was_shut_down(
    follow: bool, sqlite_store: Store, tmp_path: Path
) -> None:
    made, _, _ = begin(sqlite_store)
    sqlite_store.logs.add(made.id, {(0, 1): [LogChunk.of(0, 0, b"first\n", T0)]})
    ending = threading.Event()

    async def allowed() -> bool:
        return True

    reader = LogReader(sqlite_store, tmp_path, trial_id(made.public_id, 0), 1, 0)
    pieces = reader.stream(follow, ending, allowed)
    assert await anext(pieces) == "first\n"
    ending.set()
    assert [piece async for piece in pieces] == [logs.CUT]


async def test_what_its_ranks_used(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, _, _ = begin(sqlite_store)
    samples = [
        UsageSample(trial=0, segment=1, rank=rank, sample_no=n, time=T0 + 1 + 2 * n, cpu_s=3.0 * n, rss_bytes=n)
        for rank in (0, 1)
        for n in (1, 2)
    ]
    sqlite_store.ranks.add_usage(made.id, samples)
    url = f"/api/v1/trials/{trial_id(made.public_id, 0)}/usage"
    assert [(i["segment"], i["rank"]) for i in (await client.get(url)).json()["items"]] == [(1, 0), (1, 1)]
    [item] = (await client.get(url, params={"rank": 1, "segment": 1})).json()["items"]
    assert item == {
        "segment": 1, "rank": 1, "x": [2.0, 4.0], "cpu_percent": [150.0, 150.0], "rss_bytes": [1, 2],
        "gpu_bytes": [None, None], "gpu_reserved_bytes": [None, None], "gpu_percent": [None, None],
    }  # fmt: skip
    assert (await client.get(url, params={"segment": 2})).json()["items"] == []
    assert (await client.get(url, params={"rank": -1})).status_code == 422


async def test_the_ranks_at_this_moment(client: httpx.AsyncClient, app: FastAPI, sqlite_store: Store) -> None:
    made, epoch, [trial] = begin(sqlite_store)
    asked: list[str] = []
    ranks: dict[str, dict[str, Any]] = {
        "10": {"stack": "no answer"},
        "2": {"stack": "thread train:\n", "time": 1.0, "cpu_s": 1.5, "rss_bytes": 2e9, "threads": 7.0},
    }

    def look(segment: str) -> dict[str, dict[str, Any]]:
        asked.append(segment)
        return ranks

    app.state.context.driver.look = look
    url = f"/api/v1/trials/{trial_id(made.public_id, 0)}/live"
    found = (await client.get(url)).json()
    gpu = {"gpu_bytes": None, "gpu_reserved_bytes": None, "gpu_percent": None}
    assert found == {"segment": 1, "data_sets": [], "ranks": [
        {"rank": 2, "stack": "thread train:\n", "cpu_s": 1.5, "rss_bytes": 2_000_000_000, "threads": 7, **gpu},
        {"rank": 10, "stack": "no answer", "cpu_s": None, "rss_bytes": None, "threads": None, **gpu},
    ]}  # fmt: skip
    assert asked == [segment_id(made.public_id, 0, 1)]
    ranks.clear()
    assert (await client.get(url)).status_code == 409, "it has ended since"
    trial.state, trial.segments[0].ended_at, trial.segments[0].state = TrialState.STOPPED, T0 + 4, SegmentState.LEFT
    sqlite_store.drivers.commit(made.id, epoch, Batch(log=[], trials=[trial]), T0)
    answer = await client.get(url)
    assert (answer.status_code, len(asked)) == (409, 2)
    assert "is stopped, so it has no running ranks" in answer.json()["detail"]


async def test_a_trial_that_another_driver_runs_says_which(
    client: httpx.AsyncClient, app: FastAPI, sqlite_store: Store
) -> None:
    made, *_ = begin(sqlite_store)
    asked: list[tuple[str, Mapping[str, Any]]] = []

    def profile(segment: str, arguments: Mapping[str, Any]) -> Future[dict[str, Any]]:
        asked.append((segment, arguments))
        answer: Future[dict[str, Any]] = Future()
        answer.set_result({"found": None})
        return answer

    driver = app.state.context.driver
    driver.look, driver.profile = lambda segment: {}, profile
    url = f"/api/v1/trials/{trial_id(made.public_id, 0)}"
    owner = sqlite_store.experiments.get(made.public_id).driver_owner
    assert owner
    for answer in (await client.get(f"{url}/live"), await client.post(f"{url}/profile", json={"rank": 1})):
        assert answer.status_code == 409
        assert f"another driver runs them (the newest one of the experiment is {owner})" in answer.json()["detail"]
    given = {"rank": 1, "kind": "cpu", "duration_s": 5.0, "rate_hz": 100.0}
    assert asked == [(segment_id(made.public_id, 0, 1), {**given, "id": ANY})]


async def test_a_profile_that_waits_ends_with_the_service(
    client: httpx.AsyncClient, app: FastAPI, sqlite_store: Store
) -> None:
    made, *_ = begin(sqlite_store)
    never: Future[dict[str, Any]] = Future()
    asked: list[Mapping[str, Any]] = []

    def profile(segment: str, arguments: Mapping[str, Any]) -> Future[dict[str, Any]]:
        asked.append(arguments)
        return never

    app.state.context.driver.profile = profile
    waiting = asyncio.create_task(client.post(f"/api/v1/trials/{trial_id(made.public_id, 0)}/profile"))
    await asyncio.sleep(0)
    app.state.context.end()
    answer = await waiting
    assert (answer.status_code, answer.json()["detail"]) == (503, "the service is shutting down")
    assert never.cancelled()
    assert asked[1:] == [{"stop": asked[0]["id"]}]


async def test_no_ranks_where_no_driver_can_be_asked(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    made, *_ = begin(sqlite_store)
    answer = await client.get(f"/api/v1/trials/{trial_id(made.public_id, 0)}/live")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "a script drives this experiment" in answer.json()["detail"]
    answer = await client.post(f"/api/v1/trials/{trial_id(made.public_id, 0)}/profile")
    assert answer.status_code == 503
    assert "a script drives this experiment; ranks can be profiled only" in answer.json()["detail"]


async def test_the_curves_of_every_metric(client: httpx.AsyncClient, sqlite_store: Store) -> None:
    search = bred(sqlite_store)
    number = next(trial.number for trial in search.core.trials if len(trial.segments) > 1)
    url = f"/api/v1/trials/{trial_id(search.public_id, number)}/curves"
    found = (await client.get(url)).json()
    assert (found["x"], [item["metric"] for item in found["items"]]) == ("step", ["accuracy", "loss"])
    for item in found["items"]:
        whole = (
            await client.get(f"/api/v1/experiments/{search.public_id}/curves", params={"metric": item["metric"]})
        ).json()
        assert item["segments"] == next(one["segments"] for one in whole["series"] if one["number"] == number)
    assert {"start", "exploit"} <= {segment["cause"] for segment in found["items"][0]["segments"]}
    thinned = (await client.get(url, params={"x": "time", "points": 4})).json()
    assert thinned["x"] == "time"
    assert max(len(segment["x"]) for segment in thinned["items"][0]["segments"]) <= 4


async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient) -> None:
    for path in ("trl_x", "trl_x/logs", "trl_x/usage", "trl_x/live", "a%00", "a%00/usage"):
        assert (await client.get(f"/api/v1/trials/{path}")).status_code == 404
    assert (await client.post("/api/v1/trials/trl_x/stop")).status_code == 404
