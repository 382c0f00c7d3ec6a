"""Lines of ranks, as they are written."""

from __future__ import annotations

import pytest

from tests.store.examples import T0, begin
from tuner.domain.logs import LogChunk
from tuner.sdk.live.echo import Echo
from tuner.store import Store


class Rank:
    """Rank 1 of the first trial of an experiment."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.experiment = begin(store)[0].id
        self.written = 0

    def write(self, content: bytes) -> None:
        chunk = LogChunk.of(1, self.written, content, T0)
        self.store.logs.add(self.experiment, {(0, 1): [chunk]})
        self.written += len(content)


@pytest.fixture
def rank(sqlite_store: Store) -> Rank:
    return Rank(sqlite_store)


def test_a_line_comes_with_its_trial_and_rank_once_it_is_whole(rank: Rank) -> None:
    echo = Echo(rank.store, rank.experiment)
    assert list(echo.lines()) == []
    rank.write(b"first\nsecond, not ye")
    assert list(echo.lines()) == ["(trial 0, rank 1) first"]
    rank.write("t ready ✓\n".encode())
    assert list(echo.lines()) == ["(trial 0, rank 1) second, not yet ready ✓"]
    assert list(echo.lines()) == []


def test_a_progress_bar_is_one_line(rank: Rank) -> None:
    echo = Echo(rank.store, rank.experiment)
    rank.write(b"\r 10%|#\r 50%|#####\r100%|##########\ndone\r\n")
    assert list(echo.lines()) == ["(trial 0, rank 1) 100%|##########", "(trial 0, rank 1) done"]


def test_the_last_line_need_not_be_finished(rank: Rank) -> None:
    echo = Echo(rank.store, rank.experiment)
    rank.write(b"one\nthe end")
    assert list(echo.lines()) == ["(trial 0, rank 1) one"]
    rank.write(b"")
    assert list(echo.lines()) == ["(trial 0, rank 1) the end"]
    assert list(echo.lines()) == []


def test_what_was_there_before_is_not_repeated(rank: Rank) -> None:
    rank.write(b"of the run before\n")
    echo = Echo(rank.store, rank.experiment)
    rank.write(b"new\n")
    assert list(echo.lines()) == ["(trial 0, rank 1) new"]
