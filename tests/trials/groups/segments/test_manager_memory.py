"""Ranks that are killed for memory, in earnest: by the kernel in a cgroup with a limit, and by Ray's own memory monitor."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.local_ray import start_ray
from tests.trials.conftest import Bench, remains
from tuner.domain.events import Failure
from tuner.trials.messages.launch import Launch

pytestmark = [pytest.mark.ray, pytest.mark.slow]

MIB = 2**20
MOST = 1024 * MIB  # what a rank takes at most of its cgroup, which may use a quarter of it, before it gives up
SPARE = 1024 * MIB  # what a rank leaves to the node


def _fill(enough: Callable[[int], bool]) -> None:
    """Take memory until it is enough, which is asked with the bytes that are taken so far, and then wait to be killed.

    Memory that other processes free meanwhile is taken too: otherwise Ray's monitor, which looks now and then, might find
    that enough is free. On a busy machine it takes minutes to fill the memory, so that time does not count.
    """
    print("loading the data set", flush=True)
    kept: list[bytearray] = []
    waited = 0.0
    while waited < 60:
        if enough(len(kept) * 32 * MIB):
            time.sleep(0.02)
            waited += 0.02
        else:
            kept.append(bytearray(os.urandom(MIB)) * 32)
    raise AssertionError("no one killed this process within 60 s")


def fills_its_cgroup(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from tuner.trials.training.session import get_context, report

    report({"a": 1})
    if get_context().world_rank == 1:
        Path(config["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
        _fill(lambda taken: taken >= MOST)
    dist.all_reduce(torch.ones(1))


def fills_its_node(config: dict[str, Any]) -> None:
    from tuner.trials.training.session import report

    def enough(taken: int) -> bool:
        """Judge by the whole node: what other processes take and give back meanwhile counts for Ray, too."""
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        return used > config["threshold"] * memory.total + 256 * MIB or memory.available < SPARE

    report({"a": 1})
    _fill(enough)


def run(bench: Bench, launch: Launch) -> Failure:
    outcome = bench.run(launch)
    assert outcome.failure is not None
    pids = [rank["pid"] for rank in bench.started(launch)["ranks"]]
    bench.call("settle")
    assert remains(pids) == {"processes": [], "placement_groups": []}
    assert outcome.failure.node == socket.gethostname()
    assert outcome.failure.pid == pids[outcome.failure.rank or 0]
    assert "loading the data set" in outcome.failure.log_tail
    return outcome.failure


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> float:
    """Let a Ray that is started now kill workers once 4 GiB more are in use. Other processes may need some of it.

    Return the share of the memory that may be in use.
    """
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + min(4096 * MIB, memory.available // 2)) / memory.total
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{threshold:.4f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    # Ray frees a buffer beside what is too much; on a machine as small as the test it would take the driver along.
    monkeypatch.setenv("RAY_max_kill_memory_buffer_bytes", str(MIB))
    return threshold


@pytest.fixture
def own_bench(without_ray: None, tmp_path: Path) -> Iterator[Bench]:
    start_ray(1, torch=True)
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    ray.shutdown()


def test_by_the_kernel(own_bench: Bench, cgroup: Path) -> None:
    failure = run(own_bench, own_bench.launch(fills_its_cgroup, 2, params={"cgroup": str(cgroup)}))
    assert (failure.kind, failure.cause, failure.rank) == ("user", "oom", 1)
    assert "killed by the kernel because memory ran out" in failure.message


def test_by_rays_memory_monitor(watchful: float, own_bench: Bench) -> None:
    failure = run(own_bench, own_bench.launch(fills_its_node, params={"threshold": watchful}))
    assert (failure.kind, failure.cause, failure.rank) == ("user", "oom", 0)
    assert "killed by Ray because its node was running out of memory" in failure.message
