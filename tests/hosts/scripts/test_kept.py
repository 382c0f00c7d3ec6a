"""The host and the Ray that are kept between two calls of `tuner.run` in one process, on real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import psutil
import pytest
import ray

import tuner
from tuner.errors import ClusterUnreachable
from tuner.hosts.on_ray import start
from tuner.hosts.ray.cluster import connect
from tuner.hosts.ray.fork_server import ForkServer
from tuner.hosts.scripts import kept
from tuner.settings import Settings

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks would import this module, with all that it imports

SPACE = {"x": tuner.uniform(0, 1)}


@pytest.fixture(scope="module")
def _ray(without_ray: None) -> Iterator[None]:
    connect(cpus=2, fork_server=ForkServer)
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


def until(happened: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def groups() -> list[dict[str, Any]]:
    table = ray.util.placement_group_table().values()
    return [group for group in table if group["state"] != "REMOVED"]


def test_a_fork_does_not_give_back_the_host_of_its_parent() -> None:
    borrowed, users = kept._Kept(None, (), "", users=1, pid=os.getppid()), kept._users
    kept._give_back(borrowed, keep=False)
    assert (borrowed.users, kept._users) == (1, users)


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
    until(lambda: [pid for pid in pids if psutil.pid_exists(pid)] == pids[-1:])  # each new one ends the one before


@pytest.mark.usefixtures("_ray")
def test_a_search_that_breaks_off_leaves_the_host_to_another_that_has_it() -> None:
    search()
    entered, done = threading.Event(), threading.Event()

    def other() -> None:
        with kept.borrow(Settings.from_env(), None, lambda host: None) as host:
            entered.set()
            done.wait(60)
            answers.append(ray.get(host.status.remote())["pid"])

    answers: list[int] = []
    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    first = host_pid()
    with pytest.raises(ValueError, match="broken off"), kept.borrow(Settings.from_env(), None, lambda host: None):
        raise ValueError("broken off")
    done.set()
    thread.join(60)
    assert answers == [first]
    assert kept._kept is None
    search()
    assert host_pid() != first


@pytest.mark.usefixtures("_ray")
def test_a_host_that_has_code_of_the_user_in_it_is_not_kept() -> None:
    class Mine(type(tuner.FIFOScheduler())):  # type: ignore[misc]
        pass

    search()
    search(scheduler=Mine())
    assert kept._kept is None


def test_a_host_that_cannot_be_reached_for_a_moment_is_closed_before_it_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was killed at once: its placement groups kept their resources until the end of the script or notebook."""
    done: list[str] = []
    lost = [ray.exceptions.ActorUnavailableError("a connection broke", None)] * 2

    def get(ref: str, timeout: float) -> None:
        if lost:
            raise lost.pop()
        done.append(ref)

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda host: done.append("killed"))
    host = SimpleNamespace(close=SimpleNamespace(remote=lambda: "closed"))
    kept._end(kept._Kept(host, (), kept._connection()))
    assert done == ["closed", "killed"]
    # Without its GCS server, the private Ray answers nothing: each of these would have waited for it.
    monkeypatch.setattr(kept, "_private", kept._Private(kept._connection(), (), None))
    monkeypatch.setattr(kept, "_is_whole", lambda: False)
    broken = kept._Kept(host, (), kept._connection())
    assert not kept._answers(broken)
    assert not kept._rests(broken)
    kept._end(broken)
    assert done == ["closed", "killed"]
    # Ray would end the script a minute later, so it is shut down, once no other thread uses it.
    monkeypatch.setattr(kept, "disconnect", lambda: done.append("disconnected"))
    broken.users, users = 2, kept._users
    monkeypatch.setattr(kept, "_users", users + 2)
    kept._give_back(broken, keep=True)
    assert "disconnected" not in done
    kept._give_back(broken, keep=True)
    assert (done, kept._private, kept._users) == (["closed", "killed", "disconnected"], None, users)


@pytest.mark.usefixtures("_ray")
def test_a_host_that_died_in_between_is_replaced_if_its_node_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    search()
    killed = host_pid()
    psutil.Process(killed).kill()
    search()
    assert host_pid() != killed
    psutil.Process(host_pid()).kill()
    monkeypatch.setattr(start, "living_nodes", set[str])  # as if the raylet, too, had died
    with pytest.raises(ClusterUnreachable, match="Ray's node on this machine has died"):
        search()


SCRIPT = """
import os, signal, sys, psutil, threading, tuner
from tuner.hosts.scripts import kept

if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(360)  # the test kills only the parent

ONE = {"metric": "loss", "mode": "min", "num_samples": 1, "scheduler": "fifo", "executor": "ray", "verbose": 0}

def train(config):
    tuner.report({"loss": config["x"], "pid": os.getpid()})

def says(config):
    tuner.report({"loss": config["x"], "said": float(os.environ.get("SAID", 0))})

def search(train=train):
    result = tuner.run(train, {"x": tuner.uniform(0, 1)}, **ONE)
    assert result.state == "completed", result.error
    return int(result.trials[0].history[-1]["pid"])

def changed(config):
    train({"x": -config["x"]})

def search_in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(search()))
    thread.start()
    thread.join()
    return found[0]

first, second = search_in_a_thread(), search_in_a_thread()
os.environ["KMP_INIT_AT_FORK"] = "FALSE"  # as `import sklearn` does
third = search(changed)
assert first == second == third, "the worker of the first search outlives its thread, and is warm for a changed function"

from tuner.errors import SpecError
import ray
try:
    tuner.run(train, {}, metric="loss", mode="min", resources_per_worker={"CPU": 4096}, verbose=0)
    sys.exit("4096 CPUs were not refused")
except SpecError as error:
    assert "4096" in str(error), error
pid = ray.get(kept._kept.host.status.remote())["pid"]
psutil.Process(pid).kill()
search()
os.environ["SAID"] = "1"
result = tuner.run(says, {"x": tuner.uniform(0, 1)}, **ONE)
assert result.trials[0].history[-1]["said"] == 1.0, "the Ray that was started here is replaced, also after its host died"
for part in ("raylet", "gcs_server"):
    (process,) = [child for child in psutil.Process().children() if child.name() == part]
    process.kill()
    search()
below = psutil.Process().children(recursive=True)
tuner.shutdown()
_, left = psutil.wait_procs(below, timeout=30)
assert not left, left
print(search() != first, *[process.pid for process in psutil.Process().children(recursive=True)])
"""


def test_a_script_of_its_own_keeps_ray_and_warm_workers_until_it_ends(tmp_path: Path) -> None:
    """Ray outlives the thread that has started it, and is started anew without one of its processes.

    The kernel killed Ray with that thread. After the next search had waited for a minute, Ray ended the whole script. After the
    kernel had killed the raylet for lack of memory, a search waited forever. Without the GCS server, Ray ended the script after
    a minute, even if its search was over. The script is a fork of a process that has imported the modules, as the workers of a
    preloading server are. Such a fork started a host for each search, and `tuner.shutdown` ended nothing.
    """
    environment = {**os.environ, "TUNER_HOME": str(tmp_path / "home")}
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, env=environment, timeout=380
    )
    assert done.returncode == 0, done.stderr
    new, *pids = done.stdout.splitlines()[-1].split()
    assert new == "True"
    until(lambda: not [pid for pid in pids if psutil.pid_exists(int(pid))])


RECONNECTS = """
import ray, tuner
from ray.cluster_utils import Cluster

ONE = {"metric": "loss", "mode": "min", "num_samples": 1, "scheduler": "fifo", "executor": "ray", "verbose": 0}

def train(config):
    tuner.report({"loss": config["x"]})

def search():
    result = tuner.run(train, {"x": tuner.uniform(0, 1)}, **ONE)
    assert result.state == "completed", result.error

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
for _ in range(2):
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    search()
    ray.shutdown()
tuner.shutdown()
cluster.shutdown()
"""


@pytest.mark.long  # test_a_script_of_its_own_keeps_ray_and_warm_workers_until_it_ends is the usual case
def test_a_script_that_connects_anew_to_the_same_ray(tmp_path: Path) -> None:
    """The actor of the first connection ended with it, though node and cluster are the same."""
    (tmp_path / "script.py").write_text(RECONNECTS)
    environment = {**os.environ, "TUNER_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=380)
    assert done.returncode == 0, done.stderr
