"""Tests of the search for connections to the Ray node. `test_manager_failures` checks that forked children drop them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tuner.trials.runtime.ray_rank import leads_to_node


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
