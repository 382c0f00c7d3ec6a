"""The nodes that tests make are separate, and nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from tests.nodes import network
from tests.nodes.network import Network, ip, why_not


@pytest.fixture(autouse=True)
def _allowed() -> None:
    if reason := why_not():
        pytest.skip(reason)


def reaches(made: Network, number: int, address: str) -> bool:
    """Return whether a node gets an answer from an address: a connection that is accepted or refused."""
    knocks = f"import socket\ntry: socket.create_connection(({address!r}, 9), 0.5)\nexcept ConnectionRefusedError: pass"
    with made.process(number, ["python3", "-c", f"{knocks}"]) as process:
        return process.wait(timeout=20) == 0


def test_links_are_cut_parted_and_mended() -> None:
    with Network(3) as made:
        first, second, third = made.addresses
        assert reaches(made, 0, second)
        made.cut(1)
        assert not reaches(made, 0, second)
        assert reaches(made, 0, third)
        made.mend(1)
        assert reaches(made, 0, second)
        made.part(0, 1)
        assert not reaches(made, 0, second)
        assert not reaches(made, 1, first)
        assert reaches(made, 2, first)
        made.join(0, 1)
        assert reaches(made, 0, second)


def test_processes_and_interfaces_are_removed_even_after_an_error() -> None:
    before = ip("-o", "link")
    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(ZeroDivisionError), Network(2) as made:
        started.append(subprocess.Popen(["ip", "netns", "exec", made.space(0), "sleep", "600"]))
        while not made.pids(0):
            time.sleep(0.01)
        raise ZeroDivisionError
    assert started[0].wait(timeout=10) != 0, "it was killed"
    assert f"{network.PREFIX}-{os.getpid()}" not in ip("netns", "list")
    assert ip("-o", "link") == before


def test_what_a_killed_run_has_left_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    left = Network(1)
    left._mark, left._bridge = str(gone.pid), f"tb{gone.pid}"
    left.__enter__()
    with Network(1):
        assert left.space(0) not in ip("netns", "list")
        assert left._bridge not in ip("-o", "link")
