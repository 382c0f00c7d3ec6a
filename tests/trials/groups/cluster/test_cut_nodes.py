"""Nodes that cannot be reached, although Ray counts them as alive, and the names of nodes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import ray

from tuner.telemetry import log_format
from tuner.trials.groups.cluster import cut_nodes
from tuner.trials.groups.cluster.cut_nodes import CutNodes, selector
from tuner.trials.groups.cluster.node_names import node_names


def node(name: str, address: str = "127.0.0.1", port: int = 1, alive: bool = True) -> dict[str, Any]:
    return {
        "NodeID": name,
        "NodeManagerAddress": address,
        "NodeManagerPort": port,
        "NodeManagerHostname": "host",
        "Alive": alive,
    }


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.01)


async def test_a_node_is_left_out_until_it_answers_or_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [node("a"), node("b"), node("c")]
    monkeypatch.setattr(ray, "nodes", lambda: known)
    monkeypatch.setattr(cut_nodes, "_LOOK_S", 0.01)
    back: list[str] = []
    cut = CutNodes(asyncio.to_thread, back.append)
    cut.add("a")
    cut.add("b")
    assert selector(cut.ids(), 2) == [{"ray.io/node-id": "!in(a,b)"}] * 2
    known[1] = node("b", alive=False)
    await until(lambda: "b" not in cut)
    assert back == [], "a dead node does not come back"
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        known[0] = node("a", port=raylet.getsockname()[1])
        await until(lambda: "a" not in cut)
        assert back == ["a"]
        assert selector(cut.ids(), 1) is None
        known[2] = node("c", port=raylet.getsockname()[1])
        cut.add("c", 60.0)
        await asyncio.sleep(0.1)
        assert "c" in cut, "although it answers, as another node does not reach it"
    cut.close()


async def test_what_is_logged_about_nodes_names_no_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment that was the first to miss a node may end long before the node comes back."""
    about: list[Any] = []

    def nodes() -> list[Any]:
        about.append(log_format.ids())
        return []

    monkeypatch.setattr(ray, "nodes", nodes)
    monkeypatch.setattr(cut_nodes, "_LOOK_S", 0.01)
    cut = CutNodes(asyncio.to_thread, lambda node: None)
    with log_format.about(experiment="exp_a"):
        cut.add("a")
    await until(lambda: "a" not in cut)
    cut.close()
    assert about == [{}]


def test_nodes_are_named_by_their_addresses_if_they_share_a_host_name() -> None:
    assert node_names([node("a", "10.0.0.1"), node("b", "10.0.0.2")]) == {"a": "10.0.0.1", "b": "10.0.0.2"}
    assert node_names([node("a"), node("b")]) == {"a": "host", "b": "host"}, "two nodes of Ray on one machine"
