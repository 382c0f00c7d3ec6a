"""Test what the executor on Ray knows of nodes that may join, and how it calls functions in other processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from tuner.hosts import ray_executor
from tuner.hosts.ray_executor import RayExecutor
from tuner.trials.groups.cluster.growth import NodeType

BIG = NodeType({"CPU": 64.0}, 2)


def test_ray_is_asked_again_for_the_types_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An autoscaler tells Ray some time after the first experiment may have been started."""
    answers: list[Sequence[NodeType]] = [(), [BIG]]
    monkeypatch.setattr(ray_executor, "known_types", lambda: answers.pop(0))
    executor = RayExecutor()
    assert executor._node_types() == executor._node_types() == ()
    monkeypatch.setattr(ray_executor, "TYPES_S", 0.0)
    executor._ask_again = 0.0
    assert executor._node_types() == [BIG]


async def test_the_nodes_that_may_join_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"NodeID": "a", "Alive": True, "Resources": {"CPU": 64.0, "node:10.0.0.1": 1.0}}
    gone = {"NodeID": "b", "Alive": False, "Resources": {"CPU": 64.0}}
    assert await RayExecutor([BIG]).joining([there, gone]) == [({"CPU": 64.0}, 1)]


def test_the_operators_types_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "known_types", lambda: pytest.fail("Ray was asked"))
    assert RayExecutor([BIG])._node_types() == [BIG]


def test_a_reference_of_the_users_is_shared_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses to put a reference, so each trial failed whose function gets one by `with_parameters`."""
    monkeypatch.setattr(ray, "put", lambda value: pytest.fail("a reference was put"))
    reference = ray.ObjectRef.from_random()
    assert RayExecutor().share(reference) is reference


def test_ray_keeps_a_function_once_however_often_it_is_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each proposal of a user's own searcher left a copy, which Ray's head node keeps as long as the service runs."""
    made: list[Callable[..., Any]] = []

    def remote(**options: Any) -> Callable[..., Any]:
        return lambda function: made.append(function) or SimpleNamespace(remote=function)

    def double(value: int) -> int:
        return 2 * value

    monkeypatch.setattr(ray, "remote", remote)
    executor = RayExecutor()
    assert [executor.offload([], double, value) for value in (1, 2, 3)] == [2, 4, 6]
    assert made == [double]
