"""What a rank says of its progress, without Ray."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from tuner.trials.protocol import RankResult
from tuner.trials.worker import Rank


def a_rank() -> tuple[Any, Any]:
    """One whose segment was prepared an hour ago, and the segment."""
    session = SimpleNamespace(count=0, progressed_at=time.monotonic() - 3600, waiting_for_verdict=False, saving=False)
    segment: Any = SimpleNamespace(session=session, thread=None, ended=threading.Event(), result=None)
    rank: Any = object.__new__(Rank)
    rank._segment = segment
    return rank, segment


def test_a_rank_that_has_not_entered_the_function_yet_does_not_hang() -> None:
    rank, _ = a_rank()
    assert rank.progress().idle_s == 0.0


def test_the_clock_of_a_hang_begins_with_the_function() -> None:
    rank, segment = a_rank()
    inside, go_on = threading.Event(), threading.Event()

    def main(running: Any) -> None:
        inside.set()
        go_on.wait(20)
        running.result = RankResult(kind="returned")
        running.ended.set()

    rank._main = main
    training = threading.Thread(target=rank.train)
    training.start()
    assert inside.wait(20)
    assert 0.0 < rank.progress().idle_s < 1800.0
    segment.session.progressed_at -= 3600
    assert rank.progress().idle_s > 3500.0
    go_on.set()
    training.join(20)
    assert rank.progress() is None
