"""Test that the lanes of `.ci/test` are forked from one process, and end with it or with their clients."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import lanes

SERVE = """
import sys, types
sys.modules["pytest"] = types.SimpleNamespace(main=lambda arguments: 0)  # there is nothing to collect
from tests.lanes import serve
serve(sys.argv[1])
"""
LANE = "import os, sys; print(os.getpid(), os.getppid(), os.environ['LANE'], flush=True); sys.stdin.read()"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path / "lanes")]) as process:
        while not (tmp_path / "lanes").exists():
            assert process.poll() is None
        yield process
        process.kill()


class Client:
    """A process that asks for a lane, and the lane's first line of output."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", lanes.__file__, str(path), "-u", "-c", LANE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LANE": "gw0"},
        )
        assert self.process.stdout is not None
        lane, parent, self.name = self.process.stdout.readline().split()
        self.lane, self.parent = int(lane), int(parent)

    def finish(self) -> int:
        """Let the lane end. Return the status of the process that has asked for it."""
        self.process.communicate(timeout=60)
        return self.process.returncode


def test_a_lane_is_a_fork_with_the_files_and_variables_of_its_client(
    server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    client, later, killed = [Client(tmp_path / "lanes") for _ in range(3)]
    assert (client.parent, client.name) == (server.pid, "gw0")
    assert client.lane != client.process.pid
    assert client.finish() == 0, "a client ends with its lane, whatever later lanes do"

    lane = os.pidfd_open(killed.lane)
    killed.process.kill()
    assert select.select([lane], [], [], 60)[0], "a lane ends with its client"
    os.close(lane)
    assert later.finish() == 0
    assert killed.finish() == -signal.SIGKILL


def test_a_system_without_the_sockets_of_lanes_starts_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every lane failed on macOS, which has no SOCK_SEQPACKET."""
    ran: list[list[str]] = []

    def no_socket(*of: int) -> None:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    def run(path: str, arguments: list[str]) -> None:
        ran.append(arguments)
        raise SystemExit

    monkeypatch.setattr(lanes.socket, "socket", no_socket)
    monkeypatch.setattr(os, "execv", run)
    with pytest.raises(SystemExit):
        lanes.ask("lanes", ["-u", "-c", LANE])
    assert ran == [[sys.executable, "-u", "-c", LANE]]


def test_without_a_server_the_client_is_the_lane(tmp_path: Path) -> None:
    client = Client(tmp_path / "nobody")
    assert client.lane == client.process.pid
    assert client.finish() == 0
