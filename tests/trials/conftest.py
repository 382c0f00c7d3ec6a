"""A real driver host with a GroupManager in it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tests.services import DEADLINE_S
from tests.trials.host import Host, LocalHost
from tuner.domain.events import CheckpointInfo
from tuner.domain.experiment import Limits, Scaling
from tuner.domain.segments import Outcome, Report, Verdict
from tuner.trials.messages.launch import CodeRef, Launch

ROOT = str(Path(__file__).resolve().parents[2])
_numbers = itertools.count(1)


@functools.cache
def _code(module: str) -> CodeRef:
    """All functions of a test module as one trainable, so that its tests can share warm groups."""
    cloudpickle.register_pickle_by_value(sys.modules[module])
    functions = inspect.getmembers(sys.modules[module], inspect.isfunction)
    # Ranks would import the modules of functions from elsewhere, and all that tests and fixtures use, such as pytest and Ray.
    table = {
        name: item
        for name, item in functions
        if item.__module__ == module and list(inspect.signature(item).parameters) == ["config"]
    }

    def dispatch(config: dict[str, Any]) -> None:
        table[config["do"]](config)

    blob = cloudpickle.dumps(dispatch)
    return CodeRef(hash=hashlib.sha256(blob).hexdigest(), blob=blob, sys_path=(ROOT,))


class Launches:
    """Makes launches of the functions of test modules."""

    folder: Path

    def launch(self, function: Callable[..., Any] | str, ranks: int = 1, **changes: Any) -> Launch:
        number = next(_numbers)
        if isinstance(function, str):
            code = CodeRef(hash=function, entrypoint=function, sys_path=(ROOT, str(self.folder)))
        else:
            code = _code(function.__module__)
            changes["params"] = {"do": function.__name__, **changes.get("params", {})}
        scaling = Scaling(**{"num_workers": ranks, "resources_per_worker": {"CPU": 0.5}, **changes.pop("scaling", {})})
        return Launch(
            **{
                "experiment_id": "exp_test",
                "trial_id": f"trl_{number}",
                "segment_id": f"seg_{number}",
                "trial_number": number,
                "code": code,
                "scaling": scaling,
                "limits": Limits(**{"hang_timeout_s": 60.0, "stop_grace_s": 5.0, **changes.pop("limits", {})}),
                "storage": str(self.folder / "checkpoints"),
                "log_dir": str(self.folder / "logs"),
                **changes,
            }
        )

    def log(self, launch: Launch, rank: int = 0) -> str:
        return (self.folder / "logs" / launch.segment_id / f"rank{rank}.log").read_text()


class Bench(Launches):
    """Runs functions as segments on a real host."""

    def __init__(self, folder: Path, *, detached: bool = False, **options: Any) -> None:
        self.folder = folder
        lifetime = {"lifetime": "detached", "name": folder.name} if detached else {}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.host = Host.options(scheduling_strategy=here, **lifetime).remote(options)  # type: ignore[attr-defined]

    def begin(self, launch: Launch, verdicts: dict[int, Verdict] | None = None) -> Any:
        return self.host.run.remote(launch, verdicts)

    def end_of(self, running: Any, timeout: float = DEADLINE_S) -> Outcome:
        """Wait for the end of a segment that was begun."""
        outcome: Outcome = ray.get(running, timeout=timeout)
        return outcome

    def run(self, launch: Launch, verdicts: dict[int, Verdict] | None = None, timeout: float = DEADLINE_S) -> Outcome:
        return self.end_of(self.begin(launch, verdicts), timeout)

    def interrupt(self, launch: Launch, action: str) -> None:
        ray.get(self.host.interrupt.remote(launch.segment_id, action), timeout=DEADLINE_S)

    def reports(self, launch: Launch) -> list[Report]:
        return list(ray.get(self.host.seen.remote(launch.segment_id)))

    def checkpoints(self, launch: Launch) -> list[CheckpointInfo]:
        return list(ray.get(self.host.saved.remote(launch.segment_id)))

    def order(self, launch: Launch) -> list[tuple[str, int]]:
        """("report", report_no) and ("checkpoint", step), as they came to the driver."""
        return list(ray.get(self.host.order.remote(launch.segment_id)))

    def started(self, launch: Launch) -> dict[str, Any]:
        """Wait until every rank has started, which may be after rank 0's first report."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for start in ray.get(self.host.events.remote())[1]:
                if start["segment"] == launch.segment_id:
                    return dict(start)
            time.sleep(0.05)
        raise TimeoutError(f"segment {launch.segment_id} has not started")

    def waits(self) -> list[str]:
        return list(ray.get(self.host.events.remote())[0])

    def call(self, name: str, *args: Any) -> Any:
        return ray.get(self.host.call.remote(name, *args), timeout=DEADLINE_S)

    def wait_for_report(self, launch: Launch) -> None:
        ray.get(self.host.first_report.remote(launch.segment_id), timeout=DEADLINE_S)

    def close(self) -> None:
        self.call("close")
        ray.kill(self.host)


@pytest.fixture(scope="module")
def bench(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.close()


class LocalBench(Launches):
    """Runs functions as segments in processes of this machine, with a host in a thread of the test's process."""

    def __init__(self, folder: Path, cpus: float = 2, **options: Any) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.host = self.wait(LocalHost.begin(cpus, **options))

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.submit(work).result(DEADLINE_S)

    def begin(self, launch: Launch, verdicts: dict[int, Verdict] | None = None) -> Future[Outcome]:
        return self.submit(self.host.run(launch, verdicts))

    def end_of(self, running: Future[Outcome]) -> Outcome:
        """Wait for the end of a segment that was begun."""
        return running.result(DEADLINE_S)

    def run(self, launch: Launch, verdicts: dict[int, Verdict] | None = None) -> Outcome:
        return self.end_of(self.begin(launch, verdicts))

    def interrupt(self, launch: Launch, action: str) -> None:
        self.wait(self.host.interrupt(launch.segment_id, action))

    def started(self, launch: Launch) -> dict[str, Any]:
        """Wait until the rank has started, which may be after its first report."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for start in list(self.host.inbox.starts):
                if start["segment"] == launch.segment_id:
                    return dict(start)
            time.sleep(0.01)
        raise TimeoutError(f"{launch.segment_id} has not started")

    def call(self, name: str, *args: Any) -> Any:
        return self.wait(self.host.call(name, *args))

    def reports(self, launch: Launch) -> list[Report]:
        return self.host.reports.get(launch.segment_id, [])

    def checkpoints(self, launch: Launch) -> list[CheckpointInfo]:
        return self.host.checkpoints.get(launch.segment_id, [])

    def wait_for_report(self, launch: Launch) -> None:
        self.wait(self.host.first_report(launch.segment_id))

    def close(self) -> None:
        self.wait(self.host.end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@pytest.fixture(scope="module")
def local_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBench]:
    bench = LocalBench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.close()


def remains(pids: list[int]) -> dict[str, Any]:
    """Return what is left of worker groups: those of these processes that live, and placement groups that still exist."""
    alive = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                alive.append((pid, process.name(), process.status(), process.ppid()))
    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return {"processes": alive, "placement_groups": groups}


def listening(pids: list[int]) -> set[int]:
    """Ports that these processes listen at."""
    ports = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # it may be going away just now
            connections = psutil.Process(pid).net_connections("tcp")
            ports |= {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return ports


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Yield a cgroup that may use 256 MiB of memory, or skip the test if this process may not create one."""
    name = f"tuner-test-{os.getpid()}"
    if Path("/sys/fs/cgroup/cgroup.controllers").is_file():
        folder, limit = Path("/sys/fs/cgroup") / name, "memory.max"
    else:
        folder, limit = Path("/sys/fs/cgroup/memory") / name, "memory.limit_in_bytes"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            (folder / limit).write_text(str(256 * 2**20))
        except OSError as error:
            pytest.skip(f"a cgroup's memory cannot be limited here: {error}")
        yield folder
    finally:
        folder.rmdir()  # fails unless all its processes are gone
