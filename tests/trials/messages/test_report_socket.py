"""Reports over the socket, and by calls of the actor if it fails: each arrives exactly as often as it was sent."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from tuner.domain.events import CheckpointInfo
from tuner.domain.logs import LogChunk
from tuner.domain.segments import Report, Verdict
from tuner.errors import DriverSilent
from tuner.trials.messages import report_socket
from tuner.trials.messages.channel import Link
from tuner.trials.messages.launch import Resend
from tuner.trials.messages.report_socket import Address, LogClient, ReportClient, ReportServer


class Driver:
    """A report server on its own event loop, and the other way to the same driver."""

    def __init__(self, new_event_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.by_line: list[tuple[str, list[Report]]] = []
        self.by_call: list[tuple[str, list[Report]]] = []
        self.error: Exception | None = None
        self.held: dict[str, asyncio.Event] = {}
        self.came: dict[str, Future[None]] = {}
        self.logs: dict[str, list[tuple[str, Sequence[LogChunk]]]] = {"line": [], "call": []}
        self.exchange = ReportServer(self.take, self.take_logs)
        self.address: Address = self.run(self.exchange.open("127.0.0.1"))

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.005)

    async def take(self, segment_id: str, reports: list[Report]) -> Verdict | None:
        if segment_id in self.held:
            self.came[segment_id].set_result(None)
            await self.held[segment_id].wait()
        if self.error is not None:
            raise self.error
        self.by_line.append((segment_id, reports))
        return self._verdict(reports)

    def call(self, segment_id: str, reports: list[Report]) -> Verdict | None:
        self.by_call.append((segment_id, reports))
        return self._verdict(reports)

    async def take_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        if self.error is not None:
            raise self.error
        self.logs["line"].append((segment_id, chunks))

    def call_logs(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        self.logs["call"].append((segment_id, chunks))

    def log_connection(self, **changes: Any) -> LogClient:
        return LogClient(replace(self.address, **changes), self.call_logs)

    @staticmethod
    def _verdict(reports: list[Report]) -> Verdict | None:
        return Verdict(next_milestone=reports[-1].report_no + 1) if reports[-1].waits else None

    def hold(self, segment_id: str) -> Future[None]:
        """Let batches of this segment wait. Return once one has come."""
        self.held[segment_id] = asyncio.Event()
        self.came[segment_id] = Future()
        return self.came[segment_id]

    def release(self, segment_id: str) -> None:
        self.loop.call_soon_threadsafe(self.held[segment_id].set)

    def line(self, **changes: Any) -> ReportClient:
        return ReportClient(replace(self.address, **changes), self.call)

    def end(self) -> None:
        self.run(self.exchange.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Return a driver on each of the loops that it may have: Ray runs its actors on uvloop if that is installed."""
    driver = Driver(pytest.importorskip(request.param).new_event_loop)
    yield driver
    driver.end()


def a_report(number: int, wait: bool = False, **metrics: float) -> Report:
    return Report(report_no=number, metrics=metrics or {"loss": 0.5}, time=1.0, waits=wait)


def test_batches_come_whole_and_in_order_and_verdicts_go_back(driver: Driver) -> None:
    line = driver.line()
    large = a_report(1, **{f"metric {n}": float("nan") if n == 7 else n / 7 for n in range(20_000)})
    assert line.send("seg_a", [large]) is None
    for number in range(2, 50):
        assert line.send("seg_b", [a_report(number, wait=True)]) == Verdict(next_milestone=number + 1)
    [(name, [first]), *rest] = driver.by_line
    assert (name, first.metrics.keys()) == ("seg_a", large.metrics.keys())
    assert [reports[0].report_no for _, reports in rest] == list(range(2, 50))
    assert driver.by_call == []
    line.close()


def test_all_of_a_report_and_of_a_verdict_comes_over(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = CheckpointInfo(id="ckp_1", uri="/data/ckp_1", step=3, bytes=7, ready=False)
    report = Report(
        report_no=3,
        metrics={"a": 1.0, "b": 2.0},
        time=5.5,
        step=30,
        checkpoint=saved,
        waits=True,
        last=True,
        offer=6,
        age=0.2,
    )
    verdict = Verdict(
        action="exploit", next_milestone=9, save_checkpoint=True, reason="it is the worst of 8", completed=True
    )
    assert all(getattr(verdict, f.name) != f.default for f in fields(Verdict))
    assert all(getattr(report, f.name) != f.default for f in fields(Report))
    monkeypatch.setattr(driver, "_verdict", lambda reports: verdict)
    line = driver.line()
    assert line.send("seg", [report]) == verdict
    [(segment, [came])] = driver.by_line
    assert (segment, asdict(came)) == ("seg", asdict(report))  # `==` of reports leaves some fields out
    line.close()


def test_a_call_for_missing_reports_comes_over(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_verdict", lambda reports: Resend(after=0))
    line = driver.line()
    assert line.send("seg", [a_report(3, wait=True)]) == Resend(after=0)
    assert driver.by_call == []
    line.close()


def test_one_rank_that_waits_for_its_verdict_holds_nobody_else_up(driver: Driver) -> None:
    slow, quick = driver.line(), driver.line()
    came = driver.hold("seg_slow")
    answers: list[Verdict | None] = []
    waiting = threading.Thread(target=lambda: answers.append(slow.send("seg_slow", [a_report(1, wait=True)])))
    waiting.start()
    came.result(20)
    assert quick.send("seg_quick", [a_report(1)]) is None
    assert answers == []
    driver.release("seg_slow")
    waiting.join(20)
    assert answers == [Verdict(next_milestone=2)]
    slow.close()
    quick.close()


def test_an_error_of_the_driver_is_told_by_the_call(driver: Driver) -> None:
    line = driver.line()
    driver.error = RuntimeError("the experiment is over")
    assert line.send("seg", [a_report(1, wait=True)]) == Verdict(next_milestone=2)
    assert (len(driver.by_line), len(driver.by_call)) == (0, 1)
    driver.error = None
    line.send("seg", [a_report(2)])
    assert (len(driver.by_line), len(driver.by_call)) == (1, 1), "the line is whole"
    line.close()


def test_a_line_that_breaks_while_a_verdict_is_waited_for(driver: Driver) -> None:
    line = driver.line()
    line.send("seg", [a_report(1)])
    came = driver.hold("seg")
    answers: list[Verdict | None] = []
    waiting = threading.Thread(target=lambda: answers.append(line.send("seg", [a_report(2, wait=True)])))
    waiting.start()
    came.result(20)
    driver.run(driver.exchange.close())
    waiting.join(20)
    assert answers == [Verdict(next_milestone=3)]
    assert line.send("seg", [a_report(3)]) is None
    assert [reports[0].report_no for _, reports in driver.by_call] == [2, 3]


@pytest.mark.parametrize("trouble", ["nobody listens", "a wrong token", "no address"])
def test_without_a_line_everything_goes_by_calls(driver: Driver, trouble: str) -> None:
    if trouble == "nobody listens":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        line = driver.line(port=port)
    elif trouble == "a wrong token":
        line = driver.line(token=bytes(16))
    else:
        line = ReportClient(None, driver.call)
    for number in (1, 2):
        assert line.send("seg", [a_report(number, wait=True)]) == Verdict(next_milestone=number + 1)
    assert (len(driver.by_line), len(driver.by_call)) == (0, 2)


def test_nothing_is_read_from_whoever_does_not_have_the_token(driver: Driver) -> None:
    with socket.create_connection((driver.address.host, driver.address.port), timeout=20) as other:
        other.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert other.recv(100) == b""
    with socket.create_connection((driver.address.host, driver.address.port), timeout=20) as other:
        other.sendall(driver.address.token[:5])
    line = driver.line()
    assert line.send("seg", [a_report(1)]) is None
    assert len(driver.by_line) == 1
    line.close()


CHUNKS = [LogChunk.of(3, 7, b"printed\n", 5.5), LogChunk.of(3, 15, b"", 6.0)]


def test_logs_come_over_beside_a_report_that_waits(driver: Driver) -> None:
    reports, logs = driver.line(), driver.log_connection()
    came = driver.hold("seg")
    waiting = threading.Thread(target=reports.send, args=("seg", [a_report(1, wait=True)]))
    waiting.start()
    came.result(20)
    logs.send("seg", CHUNKS)
    assert driver.logs == {"line": [("seg", CHUNKS)], "call": []}
    driver.release("seg")
    waiting.join(20)
    reports.close()
    logs.close()


def test_logs_that_could_not_be_stored_are_an_error_and_may_be_sent_again(driver: Driver) -> None:
    logs = driver.log_connection()
    driver.error = OSError("the disk is full")
    with pytest.raises(DriverSilent):
        logs.send("seg", CHUNKS)
    driver.error = None
    logs.send("seg", CHUNKS)
    assert driver.logs == {"line": [("seg", CHUNKS)], "call": []}
    logs.close()


def test_without_a_connection_logs_go_by_calls(driver: Driver) -> None:
    logs = driver.log_connection(token=bytes(16))
    logs.send("seg", CHUNKS)
    logs.send("seg", CHUNKS)
    assert driver.logs == {"line": [], "call": [("seg", CHUNKS)] * 2}


def test_a_batch_is_taken_although_its_connection_breaks_meanwhile(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver printed "cannot answer a message from a rank" and a traceback if a rank ended before it had its answer."""
    came = driver.hold("slow")
    with socket.create_connection((driver.address.host, driver.address.port)) as connection:
        connection.sendall(driver.address.token + b"R")
        Link(connection).send(("slow", [report_socket._parts(a_report(1))]))
        came.result(20)
    driver.run(driver.until(lambda: not driver.exchange._connections))
    driver.release("slow")
    driver.run(driver.until(lambda: any(name == "slow" for name, _ in driver.by_line)))
    driver.run(driver.until(lambda: not driver.exchange._serving))
    assert not caplog.records


def test_an_address_that_cannot_be_reached_is_an_error(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a loopback interface, a process can listen at 127.0.0.1. Ranks had tried to connect for minutes, in silence."""

    async def unreachable(*args: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(asyncio, "open_connection", unreachable)
    server = ReportServer(driver.take, driver.take_logs)
    with pytest.raises(OSError, match="Network is unreachable"):
        driver.run(server.open("127.0.0.1"))
    assert server._server is not None
    assert not server._server.is_serving()
