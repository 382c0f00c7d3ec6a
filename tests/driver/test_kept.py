"""What stays between two calls of `tuner.run` in one process, on real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

import tuner
from tuner.driver import kept
from tuner.driver.cluster import connect
from tuner.settings import Settings

pytestmark = pytest.mark.ray

SPACE = {"x": tuner.uniform(0, 1)}


@pytest.fixture(scope="module")
def _ray() -> Iterator[None]:
    connect(cpus=2)
    yield
    tuner.shutdown()
    ray.shutdown()


def train(config: dict[str, Any]) -> None:
    tuner.report({"loss": config["x"], "pid": os.getpid()})


def search(**options: Any) -> tuner.Result:
    arguments: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 1, "scheduler": "fifo", "verbose": 0}
    result = tuner.run(train, SPACE, **{**arguments, **options})
    assert result.state == "completed", result.error
    return result


def host_pid() -> int:
    assert kept._kept is not None
    owner: str = ray.get(kept._kept.host.status.remote())["owner"]
    return int(owner.split(":")[1])


def groups() -> list[dict[str, Any]]:
    table = ray.util.placement_group_table().values()
    return [group for group in table if group["state"] != "REMOVED"]


@pytest.mark.usefixtures("_ray")
def test_a_second_search_finds_the_host_of_the_first() -> None:
    search()
    first = host_pid()
    assert groups() == [], "on a Ray that others use no worker group stays"
    search(num_samples=2)
    assert host_pid() == first


@pytest.mark.usefixtures("_ray")
def test_what_has_changed_since_needs_a_new_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search()
    pids = [host_pid()]
    monkeypatch.setenv("SOMETHING_THE_RANKS_READ", "1")
    search()
    pids.append(host_pid())
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    search()
    pids.append(host_pid())
    Path(Settings.from_env().database_url.removeprefix("sqlite:///")).rename(tmp_path / "elsewhere.db")
    search()
    pids.append(host_pid())
    assert len(set(pids)) == 4
    assert [pid for pid in pids if psutil.pid_exists(pid)] == pids[-1:], "each new one ends the one before"


@pytest.mark.usefixtures("_ray")
def test_a_host_that_has_code_of_the_user_in_it_is_not_kept() -> None:
    class Mine(type(tuner.FIFOScheduler())):  # type: ignore[misc]
        pass

    search()
    search(scheduler=Mine())
    assert kept._kept is None


@pytest.mark.usefixtures("_ray")
def test_a_host_that_died_in_between_is_replaced() -> None:
    search()
    killed = host_pid()
    psutil.Process(killed).kill()
    search()
    assert host_pid() != killed


SCRIPT = """
import os, sys, psutil, tuner

def train(config):
    tuner.report({"loss": config["x"], "pid": os.getpid()})

def search():
    result = tuner.run(train, {"x": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=1, scheduler="fifo", verbose=0)
    return int(result.trials[0].history[-1]["pid"])

first, second = search(), search()
assert first == second, "the worker of the first search is warm for the second"
below = psutil.Process().children(recursive=True)
tuner.shutdown()
psutil.wait_procs(below, timeout=30)
assert not [process for process in below if process.is_running() and process.status() != "zombie"]
print(search() != first, *[process.pid for process in psutil.Process().children(recursive=True)])
"""


def test_a_script_of_its_own_keeps_ray_and_warm_workers_until_it_ends(tmp_path: Path) -> None:
    environment = {**os.environ, "TUNER_HOME": str(tmp_path / "home")}
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    new, *pids = done.stdout.split()
    assert new == "True"
    processes = [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]
    _, left = psutil.wait_procs(processes, timeout=30)
    assert left == []
