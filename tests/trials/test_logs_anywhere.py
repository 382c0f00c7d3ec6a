"""Logs of ranks on a real Ray, read through the store when the files and the nodes are gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

import tuner
from tests.local_ray import ForkingCluster
from tuner.api import create_app
from tuner.settings import Settings
from tuner.store import LogQuery, RankLog, Store

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def until(what: Callable[[], Any], timeout: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := what()):
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.1)
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with Store.open(Settings.from_env().database_url) as store:
        store.migrate()
        yield store


def kept(result: tuner.Result) -> list[RankLog]:
    """Remove the log files of a search, and return what the store has of the only trial."""
    settings = Settings.from_env()
    shutil.rmtree(settings.home / "logs" / result.experiment_id)
    with Store.open(settings.database_url) as store:
        return store.logs.of_trial(result.trials[0].id, LogQuery())


def prints_and_fails(config: dict[str, Any]) -> None:
    rank = tuner.get_context().world_rank
    print(f"hello from {rank}", flush=True)
    tuner.report({"loss": 1.0})
    if rank == 0:
        os.system("echo a child process")
        raise RuntimeError("no luck")
    time.sleep(60)


def dies(config: dict[str, Any]) -> None:
    print("about to die", flush=True)
    tuner.report({"loss": 1.0})
    os.kill(os.getpid(), signal.SIGKILL)


def is_patient(config: dict[str, Any]) -> None:
    """Trains on the node that has the resource, until a file is there."""
    # `print` would write the end of the line by itself, and the log may be read before that.
    print("on the other node\n", end="", flush=True)
    tuner.report({"loss": 1.0})
    while not os.path.exists(config["ready"]):
        time.sleep(0.05)
    print("last words", flush=True)


def test_the_traceback_of_a_failed_trial_is_in_its_log(private_ray: Path) -> None:
    result = tuner.run(prints_and_fails, {}, metric="loss", mode="min", num_samples=1, num_workers=2, verbose=0)
    first, second = kept(result)
    assert (first.rank, first.complete) == (0, True)
    assert first.text.startswith("hello from 0\na child process\n")
    assert first.text.endswith("RuntimeError: no luck\n")
    assert (second.rank, second.text, second.complete) == (1, "hello from 1\n", True)


def test_a_rank_that_was_killed_has_its_log(private_ray: Path) -> None:
    [log] = kept(tuner.run(dies, {}, metric="loss", mode="min", num_samples=1, verbose=0))
    assert log.text.startswith("about to die\n")
    assert log.complete


async def test_the_log_of_a_node_that_is_gone_is_read_over_rest(
    without_ray: None, home: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ForkingCluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=2, resources={"there": 1})
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        ready = tmp_path / "ready"
        failed: list[BaseException] = []

        def search() -> None:
            try:
                tuner.run(
                    is_patient,
                    {"ready": str(ready)},
                    metric="loss",
                    mode="min",
                    num_samples=1,
                    resources_per_worker={"CPU": 1, "there": 1},
                    verbose=0,
                )
            except BaseException as error:
                failed.append(error)

        running = threading.Thread(target=search)
        running.start()
        until(lambda: store.experiments.page().items and logs_or_none(store))
        app = create_app(Settings.from_env(), store, web=tmp_path / "web")
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            [experiment] = store.experiments.page().items
            [trial] = store.trials.newest(experiment.id, 1)
            url = f"/api/v1/trials/{trial.public_id}/logs"
            [item] = (await client.get(url)).json()["items"]
            assert (item["text"], item["complete"]) == ("on the other node\n", False), "while it trains"
            ready.touch()
            running.join(60)
            assert not failed
            cluster.remove_node(node)
            shutil.rmtree(home / "logs")
            [item] = (await client.get(url)).json()["items"]
            assert (item["text"], item["complete"]) == ("on the other node\nlast words\n", True)
            text = await client.get(f"{url}/text", params={"follow": True})
            assert text.text == "on the other node\nlast words\n"
    finally:
        with contextlib.suppress(Exception):
            tuner.shutdown()
        ray.shutdown()
        cluster.shutdown()


def logs_or_none(store: Store) -> list[RankLog]:
    [experiment] = store.experiments.page().items
    trials = store.trials.newest(experiment.id, 1)
    return [log for log in store.logs.of_trial(trials[0].public_id) if log.text] if trials else []
