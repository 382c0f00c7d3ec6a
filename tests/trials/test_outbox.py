from __future__ import annotations

import threading

import pytest

from tuner.trials.launch import ReportMsg, Verdict
from tuner.trials.outbox import Outbox


class Driver:
    def __init__(self) -> None:
        self.batches: list[list[ReportMsg]] = []
        self.arrived = threading.Condition()
        self.error: Exception | None = None

    def send(self, messages: list[ReportMsg]) -> Verdict | None:
        with self.arrived:
            if self.error is not None:
                raise self.error
            self.batches.append(messages)
            self.arrived.notify_all()
        return Verdict(action="pause") if messages[-1].wait else None

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: sum(map(len, self.batches)) >= count, timeout=10)

    @property
    def numbers(self) -> list[int]:
        return [message.report_no for batch in self.batches for message in batch]


def message(number: int, wait: bool = False) -> ReportMsg:
    return ReportMsg(report_no=number, metrics={"loss": 1.0}, time=0.0, wait=wait)


def test_reports_go_out_by_themselves_in_batches() -> None:
    driver = Driver()
    outbox = Outbox(driver, batching_s=0.05)
    for number in range(1, 101):
        outbox.put(message(number))
    driver.wait_for(100)
    assert driver.numbers == list(range(1, 101))
    assert len(driver.batches) < 50
    outbox.close()


def test_a_milestone_takes_what_is_buffered_along() -> None:
    driver = Driver()
    outbox = Outbox(driver, batching_s=60)
    outbox.put(message(1))
    outbox.put(message(2))
    assert outbox.ask(message(3, wait=True)) == Verdict(action="pause")
    assert driver.numbers == [1, 2, 3]
    outbox.close()


def test_closing_sends_the_rest() -> None:
    driver = Driver()
    outbox = Outbox(driver, batching_s=60)
    outbox.put(message(1))
    outbox.close()
    outbox.close()
    assert driver.numbers == [1]


def test_a_driver_that_does_not_know_the_segment_stops_it() -> None:
    driver = Driver()
    outbox = Outbox(driver)
    verdict = outbox.ask(message(1))  # this driver answers nothing to it
    assert (verdict.action, verdict.reason) == ("stop", "the driver no longer knows this run")


def test_a_lost_driver_comes_up_in_the_training_thread() -> None:
    driver = Driver()
    driver.error = ConnectionError("the host is gone")
    outbox = Outbox(driver, batching_s=0.01)
    with pytest.raises(ConnectionError, match="the host is gone"):
        for number in range(1, 100_000):
            outbox.put(message(number))
            threading.Event().wait(0.001)


def test_a_thread_that_cannot_be_started_is_what_the_user_reads_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    outbox = Outbox(Driver())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        outbox.put(message(1))
    outbox.close()
