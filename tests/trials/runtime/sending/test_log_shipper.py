"""Test how a rank's output is sent to the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tuner.domain.logs import LogChunk, LogLimit, merged
from tuner.trials.runtime.sending import log_shipper
from tuner.trials.runtime.sending.log_shipper import LogShipper

PLENTY = LogLimit.of(1 << 30)


class Driver:
    """Stores what it is sent; for a while it may be out of reach."""

    def __init__(self) -> None:
        self.chunks: list[LogChunk] = []
        self.failures = 0
        self.news = threading.Condition()

    def send(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        assert segment_id == "seg_1"
        with self.news:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("away")
            self.chunks += chunks
            self.news.notify_all()

    def content(self) -> bytes:
        return b"".join(chunk.content() for chunk in sorted(self.chunks, key=lambda chunk: chunk.start))

    def wait_for(self, what: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(what, 30)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_shipper, "PERIOD_S", 0.01)
    (tmp_path / "rank2.log").touch()
    return tmp_path / "rank2.log"


def shipper(path: Path, driver: Driver, limit: LogLimit = PLENTY) -> LogShipper:
    return LogShipper(str(path), "seg_1", 2, limit, driver.send)


def test_what_is_written_comes_while_it_is_written_and_once(path: Path, driver: Driver) -> None:
    sending = shipper(path, driver)
    sending.start()
    text = b""
    for number in range(5):
        text += b"line %d\n" % number
        path.write_bytes(text)
        driver.wait_for(lambda: len(driver.content()) == len(text))  # noqa: B023
    sending.finish()
    sending.join(30)
    *chunks, last = driver.chunks
    assert driver.content() == text
    assert sum(chunk.size for chunk in chunks) == len(text)
    assert (last.rank, last.start, last.size) == (2, len(text), 0)


def test_the_last_words_are_sent_though_there_was_no_time_before(path: Path, driver: Driver) -> None:
    sending = shipper(path, driver)
    path.write_bytes(b"x" * 300_000 + b"Traceback: boom\n")
    assert sending.rest() == [], "too long to go with the result"
    sending.start()
    assert sending.join(30)
    assert driver.content() == path.read_bytes()
    assert driver.chunks[-1].size == 0


@pytest.mark.parametrize("text", [b"", b"one line\n", b"x" * 10_000])
def test_a_short_rest_is_returned_and_not_sent(
    path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(log_shipper, "PERIOD_S", 30.0)
    sending = shipper(path, driver)
    sending.start()
    path.write_bytes(text)
    *chunks, last = sending.rest()
    assert b"".join(chunk.content() for chunk in chunks) == text
    assert (last.rank, last.start, last.size) == (2, len(text), 0)
    assert sending.tick(), "the thread forgets it"
    assert driver.chunks == []


def test_the_rest_is_what_has_not_been_sent(path: Path, driver: Driver) -> None:
    sending = shipper(path, driver)
    path.write_bytes(b"early\n")
    assert not sending.tick()
    path.write_bytes(b"early\nlate\n")
    chunks = sending.rest()
    assert [chunk.content() for chunk in chunks] == [b"late\n", b""]
    assert driver.content() == b"early\n"


def test_a_rest_that_is_asked_for_while_the_thread_sends_is_sent(path: Path, driver: Driver) -> None:
    sending = shipper(path, driver)
    path.write_bytes(b"late\n")
    with sending._sending:
        assert sending.rest() == []
    sending.start()
    assert sending.join(30)
    assert driver.content() == b"late\n"
    assert driver.chunks[-1].size == 0


def test_all_segments_of_a_process_share_a_thread(path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipper, "PERIOD_S", 3600.0)
    first, second = shipper(path, driver), shipper(path, driver)
    for sending in (first, second):
        sending.start()
        sending.finish()
        assert sending.join(30), "the end of a segment does not wait for the next time"
    assert [thread.name for thread in threading.enumerate()].count("tuner-logs") == 1


def test_a_rank_that_prints_nothing_sends_the_end_alone(path: Path, driver: Driver) -> None:
    sending = shipper(path, driver)
    sending.start()
    sending.finish()
    sending.join(30)
    assert [(chunk.start, chunk.size) for chunk in driver.chunks] == [(0, 0)]


@pytest.mark.parametrize("failures", [1, 3])
def test_a_driver_that_is_away_for_a_moment_gets_everything(path: Path, driver: Driver, failures: int) -> None:
    driver.failures = failures
    sending = shipper(path, driver)
    path.write_bytes(b"patience\n")
    sending.start()
    driver.wait_for(lambda: bool(driver.chunks))
    sending.finish()
    sending.join(30)
    assert driver.content() == b"patience\n"


def test_a_driver_that_is_away_at_the_end_gets_the_last_words(path: Path, driver: Driver) -> None:
    driver.failures = 2
    sending = shipper(path, driver)
    path.write_bytes(b"Traceback: boom\n")
    sending.finish()
    sending.start()
    assert sending.join(30)
    assert driver.content() == b"Traceback: boom\n"


def test_a_log_that_somebody_has_deleted_fails_nothing(path: Path, driver: Driver) -> None:
    sending = shipper(path, driver)
    sending.start()
    path.unlink()
    assert sending.rest() == []
    assert sending.join(30)


def test_it_gives_up_at_the_end_if_the_driver_stays_away(path: Path, driver: Driver) -> None:
    driver.failures = 10**9
    sending = shipper(path, driver)
    sending.start()
    sending.finish()
    assert sending.join(30)
    assert driver.chunks == []


def test_of_a_long_log_the_head_and_the_tail_are_sent(path: Path, driver: Driver) -> None:
    limit = LogLimit.of(400_000)
    content = b"".join(b"line %d\n" % number for number in range(200_000))
    path.write_bytes(content)
    sending = shipper(path, driver, limit)
    sending.start()
    driver.wait_for(lambda: bool(driver.chunks))
    sending.finish()
    sending.join(30)
    kept = merged((chunk.start, chunk.end) for chunk in driver.chunks)
    assert kept == [(0, 100_000), (len(content) - 300_000, len(content))]
    assert all(chunk.content() == content[chunk.start : chunk.end] for chunk in driver.chunks)
    assert sum(chunk.size for chunk in driver.chunks) == 400_000, "each byte once"


def test_a_rank_that_writes_fast_keeps_the_newest_part_readable(path: Path, driver: Driver) -> None:
    """It sends the head and the newest part while it trains, and at the end what it has skipped of the tail."""
    content = b"0123456789abcdef" * 250_000
    path.write_bytes(content)
    sending = shipper(path, driver, LogLimit.of(len(content)))
    sending.start()
    driver.wait_for(lambda: any(chunk.end == len(content) for chunk in driver.chunks))
    live = merged((chunk.start, chunk.end) for chunk in driver.chunks)
    head = len(content) // 4
    assert live == [(0, head), (len(content) - log_shipper.NEWEST_BYTES, len(content))]
    sending.finish()
    sending.join(30)
    assert merged((chunk.start, chunk.end) for chunk in driver.chunks) == [(0, len(content))]
