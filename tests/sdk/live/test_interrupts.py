"""Test which signals pause a search, and what happens to those that do not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tuner.errors import StoreError
from tuner.sdk.live.interrupts import Interrupts


@pytest.fixture(autouse=True)
def as_in_a_script() -> Iterator[None]:
    """Give SIGTERM and SIGHUP the effect that they have in a script, whatever earlier tests have set."""
    kept = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def sent(*numbers: signal.Signals) -> tuple[Interrupts, list[str]]:
    """Return what is known after these signals, and the names with which the search was paused."""
    paused: list[str] = []
    with Interrupts(paused.append) as interrupts, interrupts.heard():
        for number in numbers:
            os.kill(os.getpid(), number)
    return interrupts, paused


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_pauses_and_then_ends_the_process(number: signal.Signals, status: int) -> None:
    interrupts, paused = sent(number)
    assert (paused, interrupts.news, interrupts.count) == ([number.name], number.name, 1)
    with pytest.raises(SystemExit) as ended:
        interrupts.end_process()
    assert ended.value.code == status
    assert signal.getsignal(number) is signal.SIG_DFL, "the handler is gone"


def test_ctrl_c_ends_no_process() -> None:
    interrupts, paused = sent(signal.SIGINT)
    interrupts.end_process()
    assert paused == ["Ctrl-C"]


def test_repeated_signals_do_not_hurry() -> None:
    """A terminal that is closed, `timeout` and batch systems send several."""
    interrupts, paused = sent(signal.SIGTERM, signal.SIGTERM, signal.SIGHUP)
    assert (paused, interrupts.count) == (["SIGTERM"], 1)


def test_ctrl_c_after_another_signal_ends_at_once() -> None:
    interrupts, _ = sent(signal.SIGTERM, signal.SIGINT)
    assert interrupts.count == 2


def test_a_signal_after_ctrl_c_ends_the_process_once_the_search_is_paused() -> None:
    interrupts, paused = sent(signal.SIGINT, signal.SIGTERM)
    assert (paused, interrupts.count) == (["Ctrl-C"], 1)
    with pytest.raises(SystemExit):
        interrupts.end_process()


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)]
)
def test_a_search_that_cannot_be_paused_ends_at_once_without_a_traceback(
    number: signal.Signals, ends: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal raised the error of the database, with a traceback of 50 lines."""

    def pause(name: str) -> None:
        raise StoreError("sqlite: database or disk is full (/home/me/.tuner/tuner.db)")

    with pytest.raises(ends), Interrupts(pause) as interrupts, interrupts.heard():
        os.kill(os.getpid(), number)
    assert "`tuner resume` continues it: sqlite: database or disk is full" in capsys.readouterr().err


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_a_handler_of_the_user_stays(handler: Any) -> None:
    signal.signal(signal.SIGHUP, handler)
    interrupts, paused = sent(signal.SIGHUP)
    assert (paused, interrupts.ends) == ([], None)
    assert signal.getsignal(signal.SIGHUP) is handler


def test_ctrl_c_that_the_process_ignores_stays_ignored() -> None:
    """A shell script starts its background jobs this way, and Ctrl-C for another of its commands paused their searches."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts, paused = sent(signal.SIGINT)
        assert (paused, interrupts.count, signal.getsignal(signal.SIGINT)) == ([], 0, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_is_set_meanwhile_stays() -> None:
    with Interrupts(lambda name: None) as interrupts, interrupts.heard():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_while_nothing_can_be_paused_the_process_ends() -> None:
    with Interrupts(lambda name: None), pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # the signal ends it
    assert ended.value.code == 143


def test_other_threads_leave_signals_alone() -> None:
    found: list[Any] = []

    def work() -> None:
        with Interrupts(lambda name: None) as interrupts, interrupts.heard():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
