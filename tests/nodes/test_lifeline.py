"""A cut link is told from a process that has ended and from one that hangs."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.nodes.cluster import ROOT
from tests.nodes.network import Network, why_not
from tuner.trials.messages.keepalive import SILENT_S
from tuner.trials.messages.report_socket import Address, ReportServer

HOLDS = """
import sys, time
from tuner.trials.messages.lifeline import Lifeline
from tuner.trials.messages.report_socket import Address
line = Lifeline(Address(sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])), bytes.fromhex(sys.argv[4]))
while True:
    line.tell("it cannot reach rank 0")
    time.sleep(0.05)
"""
CUT, STOPPED, KILLED = (bytes([number]) * 16 for number in range(3))


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    with Network(3) as made:
        yield made


def test_only_the_rank_behind_a_cut_link_is_unreachable(network: Network) -> None:
    """The driver is on uvloop, as on Ray if uvloop is installed. asyncio's own loop gives it the same errors of the system."""
    with asyncio.Runner(loop_factory=pytest.importorskip("uvloop").new_event_loop) as runner:
        runner.run(_hears_of_the_cut(network))


async def _hears_of_the_cut(network: Network) -> None:
    heard: list[tuple[bytes, str, bool]] = []
    silent: dict[bytes, float] = {}

    async def no_reports(segment: str, reports: object) -> None:
        raise AssertionError

    def cut(rank: bytes, why: str, is_silent: bool) -> None:
        heard.append((rank, why, is_silent))
        if is_silent:
            silent[rank] = time.monotonic()

    server = ReportServer(no_reports, take_cut=cut)
    address = await server.open(network.gateway)
    with (
        network.process(0, command(address, CUT), {"PYTHONPATH": str(ROOT)}),
        network.process(1, command(address, STOPPED), {"PYTHONPATH": str(ROOT)}) as stopped,
        network.process(2, command(address, KILLED), {"PYTHONPATH": str(ROOT)}) as killed,
    ):
        async with asyncio.timeout(60):
            while {rank for rank, _, _ in heard} != {CUT, STOPPED, KILLED}:
                await asyncio.sleep(0.05)
        assert set(heard) == {(rank, "it cannot reach rank 0", False) for rank in (CUT, STOPPED, KILLED)}
        stopped.send_signal(signal.SIGSTOP)
        killed.kill()
        network.cut(0)
        begun = time.monotonic()
        async with asyncio.timeout(2 * SILENT_S):
            while not silent:
                await asyncio.sleep(0.05)
        assert silent[CUT] - begun > SILENT_S / 2, "a short disturbance is no cut"
        await asyncio.sleep(1.0)
        assert set(silent) == {CUT}, "a kernel answers for a process that is stopped, and tells of one that has ended"
        stopped.kill()
    await server.close()


def command(address: Address, rank: bytes) -> list[str]:
    return [sys.executable, "-c", HOLDS, address.host, str(address.port), address.token.hex(), rank.hex()]
