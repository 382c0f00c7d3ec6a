"""Tests of a rank as a Ray actor. `test_manager_failures` checks that forked children drop its connections to the Ray node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import ray

from tuner.trials.runtime.ray_rank import GROUPS, RayRank, leads_to_node


def test_only_connections_to_the_node_are_found_and_no_descriptor_is_left(tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    with socket.socket(socket.AF_UNIX) as node, socket.socket(socket.AF_UNIX) as other, socket.socket() as lone:
        connections = []
        for server, path in ((node, tmp_path / "sockets" / "raylet"), (other, tmp_path / "other")):
            server.bind(str(path))
            server.listen()
            connections.append(socket.socket(socket.AF_UNIX))
            connections[-1].connect(str(path))
        read, write = os.pipe()
        before = set(os.listdir("/dev/fd"))
        assert leads_to_node(connections[0].fileno())
        assert not leads_to_node(connections[1].fileno())
        assert not any(leads_to_node(number) for number in (read, write, lone.fileno(), node.fileno(), 10_000))
        assert set(os.listdir("/dev/fd")) == before
        for one in connections:
            one.close()
        os.close(read)
        os.close(write)


@pytest.mark.ray
def test_a_call_that_comes_again_after_later_ones_does_not_wait_for_them(local_ray: None) -> None:
    """A clean-up that Ray had lost was repeated, and waited forever behind the call that prepared the next trial."""
    actor = ray.remote(concurrency_groups=GROUPS, num_cpus=0)(RayRank).remote(None, False)
    try:
        ray.get(actor.hello.remote(False), timeout=60)
        later = [actor.serial.remote(number, "reset", ()) for number in (2, 2, 1)]
        assert not ray.wait(later, timeout=0.5)[0]  # they have arrived, and wait for the lost call
        assert ray.get([actor.serial.remote(0, "reset", ()), *later], timeout=30) == [None] * 4
    finally:
        ray.kill(actor)
