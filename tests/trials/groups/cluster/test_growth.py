"""Test which nodes may join a cluster, and what is asked of the autoscaler. `test_autoscaling` does so with a real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trials.groups.pools.asking import asking_for
from tuner.domain.experiment import Scaling
from tuner.settings import Settings
from tuner.trials.groups.cluster.growth import NodeType, is_there, may_join
from tuner.trials.groups.pools.admission import Admission, Entitlement, WaitingSegment
from tuner.trials.groups.pools.placement import unmet

HEAD = {"CPU": 1.0, "node:__internal_head__": 1.0, "memory": 1e9}
SPOT = {"CPU": 2.0, "GPU": 1.0}
TYPES = [NodeType(SPOT, 2), NodeType({"CPU": 8.0}, 1)]


def joined(resources: dict[str, float], name: str) -> dict[str, float]:
    """Return the resources that Ray reports for a node of a type."""
    return {**resources, f"node:{name}": 1.0, "memory": 2e9, "object_store_memory": 1e9, "accelerator_type:T4": 1.0}


def test_the_nodes_that_are_there_are_counted_by_their_resources() -> None:
    assert [*may_join(TYPES, {"head": HEAD}).values()] == [SPOT, SPOT, {"CPU": 8.0}]
    one = {"head": HEAD, "a": joined(SPOT, "10.0.0.2")}
    assert [*may_join(TYPES, one).values()] == [SPOT, {"CPU": 8.0}]
    full = one | {"b": joined(SPOT, "10.0.0.3"), "c": joined({"CPU": 8.0}, "10.0.0.4"), "own": {"CPU": 3.0}}
    assert may_join(TYPES, full) == {}
    assert may_join([NodeType({"CPU": 1.0}, 1)], {"head": HEAD}) != {}, "the head is never one of them"
    assert not any(map(is_there, may_join(TYPES, {})))


def test_a_group_is_refused_only_if_it_fits_on_no_node_that_may_join() -> None:
    joining = [*may_join(TYPES, {"head": HEAD}).values()]
    assert unmet(Scaling(num_workers=2, use_gpu=True), [HEAD], joining) is None
    assert unmet(Scaling(num_workers=3, use_gpu=True), [HEAD], joining) == (
        "3 × 1 GPU are requested, but the whole cluster has 0 GPU, and the nodes that may still join have 2 GPU"
    )


def test_the_setting_names_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_NODE_TYPES", "8xCPU:16+GPU:4, 2xCPU:64+accelerator_type:A100:1")
    assert Settings.from_env().node_types == (
        NodeType({"CPU": 16.0, "GPU": 4.0}, 8),
        NodeType({"CPU": 64.0, "accelerator_type:A100": 1.0}, 2),
    )


@pytest.mark.parametrize("text", ["CPU:4", "xCPU:4", "2xCPU", "2xCPU:0", "2xCPU:4+", "2xCPU:4+GPU"])
def test_what_the_setting_cannot_mean_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_NODE_TYPES", text)
    with pytest.raises(Exception, match="such as 8xCPU:16"):
        Settings.from_env()


# What is asked of Ray


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Asking:
    """An admission with a cluster that may grow, and what it lets segments ask of Ray."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, **options: object) -> None:
        self.admission = Admission(**options)  # type: ignore[arg-type]
        self._path, self._loop = path, loop
        self.nodes = {"head": {"CPU": 0.0, "node:__internal_head__": 1.0}}
        self.types = [NodeType({"CPU": 1.0}, 3)]
        self.look()

    def look(self) -> None:
        self.admission.set_nodes(self.nodes | may_join(self.types, self.nodes), {})

    def wait(self, count: int, experiment: str = "exp") -> list[WaitingSegment]:
        found = []
        for _ in range(count):
            launch = asking_for(1, self._path, experiment_id=experiment)
            found.append(
                WaitingSegment(launch, time.monotonic(), self._loop.create_future(), self._loop.create_future())
            )
            self.admission.enqueue(found[-1])
        return found

    def ask(self, now: float | None = None) -> list[WaitingSegment]:
        """Return those that may ask Ray for a group now."""
        found = []
        now = time.monotonic() if now is None else now
        while (granted := self.admission.next(now, [])) is not None:
            segment, at = granted
            self.admission.admit(segment, at, now)
            self.admission.ask_ray(segment, now)
            found.append(segment)
        return found


def test_as_much_is_asked_as_waits_and_no_more_than_may_join(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    asking = Asking(tmp_path, loop)
    first = asking.wait(2)
    assert asking.ask() == first
    more = asking.wait(4)
    assert asking.ask() == more[:1], "the cluster may have 3 nodes"
    assert (
        asking.admission.waiting()[0].reason == "waits for nodes that can hold a worker with 1 CPU to join the cluster"
    )
    for _ in range(3):
        asking.look()
        assert asking.ask(time.monotonic() + 100.0) == [], "a group whose node takes long to join keeps its place"
    asking.admission.remove(first[0])
    assert asking.ask() == more[1:2], "the one that no longer waits leaves its node to another one"


def test_a_node_that_joins_is_for_the_one_that_asked_for_it(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    asking = Asking(tmp_path, loop)
    first = asking.wait(3)
    assert asking.ask() == first
    (late,) = asking.wait(1)
    asking.nodes["a"] = joined({"CPU": 1.0}, "10.0.0.2")
    asking.look()
    assert asking.ask() == []
    assert sorted(segment.awaits_node for segment in first) == [False, True, True]
    first[0].placed.set()
    assert asking.ask() == []
    asking.nodes |= {name: joined({"CPU": 1.0}, name) for name in ("b", "c", "by hand")}
    asking.look()
    assert asking.ask() == [late], "there is room for one more, after a node that nobody asked for has joined"


def test_quotas_limit_what_is_asked(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    entitlements = {"exp": Entitlement(project="small"), "other": Entitlement(project="large")}
    asking = Asking(tmp_path, loop, quotas={"small": {"CPU": 1.0}}, entitlement=lambda name: entitlements[name])
    small, large = asking.wait(3), asking.wait(1, "other")
    assert set(asking.ask()) == {small[0], large[0]}
    assert asking.admission.why(small[1]).startswith("waits for a worker with 1 CPU: the quota of the project 'small'")


def test_elastic_trials_do_not_grow_into_nodes_that_are_not_there(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    asking = Asking(tmp_path, loop)
    asking.nodes["a"] = joined({"CPU": 1.0}, "10.0.0.2")
    asking.look()
    assert asking.admission.granted("exp", {"CPU": 1.0}) == 1
