from __future__ import annotations

import threading
import time

import pytest

from tuner.domain.segments import Report, Verdict
from tuner.errors import DriverSilent, ReportsLost
from tuner.trials.messages.launch import Resend
from tuner.trials.runtime.sending.outbox import Outbox


class Driver:
    def __init__(self) -> None:
        self.batches: list[list[Report]] = []
        self.arrived = threading.Condition()
        self.error: Exception | None = None

    def send(self, messages: list[Report]) -> Verdict | Resend | None:
        with self.arrived:
            if self.error is not None:
                raise self.error
            self.batches.append(messages)
            self.arrived.notify_all()
        return Verdict(action="pause") if messages[-1].waits else None

    def wait_for(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: sum(map(len, self.batches)) >= count, timeout=10)

    @property
    def numbers(self) -> list[int]:
        return [message.report_no for batch in self.batches for message in batch]


def message(number: int, wait: bool = False) -> Report:
    return Report(report_no=number, metrics={"loss": 1.0}, time=0.0, waits=wait)


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
    driver.error = RuntimeError("the host is gone")
    outbox = Outbox(driver, batching_s=0.01)
    with pytest.raises(ReportsLost, match="report.* did not reach the driver: RuntimeError: the host is gone"):
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


class Flaky(Driver):
    """Fails as it is told, takes what it is sent otherwise, and asks again for what it lacks."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.received = 0

    def send(self, messages: list[Report]) -> Verdict | Resend | None:
        if self.errors:
            raise self.errors.pop(0)
        if messages[0].report_no > self.received + 1:
            return Resend(after=self.received)
        self.received = messages[-1].report_no
        return super().send(messages)


def test_reports_outlast_a_driver_that_cannot_be_reached_for_a_while() -> None:
    driver = Flaky(ConnectionError("a moment's trouble"), DriverSilent("again"))
    outbox = Outbox(driver, batching_s=0.01)
    for number in (1, 2, 3):
        outbox.put(message(number))
    assert outbox.ask(message(4, wait=True)) == Verdict(action="pause")
    assert driver.numbers == [1, 2, 3, 4]
    assert driver.errors == []
    outbox.close()


def test_an_ask_never_overtakes_what_was_put_before() -> None:
    driver = Flaky(ConnectionError("a moment's trouble"))
    outbox = Outbox(driver, batching_s=60)
    outbox.put(message(1))
    assert outbox.ask(message(2, wait=True)) == Verdict(action="pause")
    assert driver.numbers == [1, 2]
    outbox.close()


def test_a_gap_that_the_driver_sees_is_filled() -> None:
    driver = Driver()
    answers: list[Resend | None] = [Resend(after=1)]
    taken: list[list[int]] = []

    def send(messages: list[Report]) -> Verdict | Resend | None:
        taken.append([message.report_no for message in messages])
        return answers.pop() if answers else Driver.send(driver, messages)

    driver.send = send  # type: ignore[method-assign,assignment]
    outbox = Outbox(driver, batching_s=60)
    for number in (1, 2):
        outbox.put(message(number))
    assert outbox.ask(message(3, wait=True)) == Verdict(action="pause")
    assert taken == [[1, 2, 3], [2, 3]]
    outbox.close()


@pytest.mark.parametrize("after", [0, 5])
def test_a_driver_that_asks_for_what_it_has_just_got_or_never_gets_is_not_answered_forever(after: int) -> None:
    driver = Driver()
    answers: list[Resend | None] = [None, *[Resend(after=after)] * 5]
    driver.send = lambda messages: answers.pop()  # type: ignore[method-assign]
    outbox = Outbox(driver, batching_s=60)
    with pytest.raises(ReportsLost, match=f"the driver asks for report {after + 1}, which this rank no longer has"):
        outbox.ask(message(1, wait=True))
    assert len(answers) == 5


def test_a_driver_that_has_lost_what_it_acknowledged_ends_the_trial() -> None:
    driver = Flaky()
    outbox = Outbox(driver, batching_s=60)
    outbox.ask(message(1, wait=True))
    driver.received = -1
    with pytest.raises(
        ReportsLost, match="report 2 did not reach the driver: LookupError: the driver asks for report 0"
    ):
        outbox.ask(message(2, wait=True))


def test_a_driver_out_of_reach_for_good_ends_the_trial_and_names_what_is_lost() -> None:
    driver = Driver()
    driver.error = ConnectionError("no route to host")
    outbox = Outbox(driver, batching_s=60, patience_s=0.1)
    outbox.put(message(1))
    lost = "reports 1 to 2 did not reach the driver: ConnectionError: no route to host"
    with pytest.raises(ReportsLost, match=lost):
        outbox.ask(message(2, wait=True))
    driver.error = None
    with pytest.raises(ReportsLost, match=lost):
        outbox.ask(message(3, wait=True))
    with pytest.raises(ReportsLost, match=lost):
        outbox.close()
    assert driver.numbers == [], "a milestone is not answered with reports before it lost"


def test_the_thread_never_takes_the_verdict_of_an_ask() -> None:
    """Let the thread send all the time while the training thread asks."""
    outbox = Outbox(Driver(), batching_s=0.0)
    for number in range(1, 400, 2):
        outbox.put(message(number))
        assert outbox.ask(message(number + 1, wait=True)).action == "pause"
    outbox.close()


def test_a_checkpoint_waits_for_its_report_and_makes_it_go_at_once() -> None:
    driver = Driver()
    outbox = Outbox(driver, batching_s=60)
    outbox.put(message(1))
    done = threading.Event()

    def announce() -> None:
        outbox.wait_for(2)
        done.set()

    thread = threading.Thread(target=announce)
    thread.start()
    driver.wait_for(1)
    assert not done.is_set()
    outbox.put(message(2))
    thread.join(10)
    assert done.is_set()
    assert driver.numbers == [1, 2]
    outbox.wait_for(1)
    outbox.close()


def test_a_checkpoint_whose_report_was_never_made_is_told_so_at_the_end() -> None:
    outbox = Outbox(Driver(), batching_s=60)
    outbox.put(message(1))
    outbox.close()
    with pytest.raises(ReportsLost, match="report 2 was never made"):
        outbox.wait_for(2)


def test_reports_are_sent_with_their_age() -> None:
    driver = Driver()
    outbox = Outbox(driver, batching_s=60)
    outbox.ask(Report(report_no=1, metrics={}, time=time.monotonic() - 50.0, waits=True))
    assert 50.0 <= driver.batches[0][0].age < 100.0
    outbox.close()
