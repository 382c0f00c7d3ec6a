"""Lines of ranks, as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.domain.keys import segment_id
from tuner.sdk.echo import Echo


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / segment_id("exp_1", 3, 2)
    folder.mkdir()
    return folder / "rank1.log"


def test_a_line_comes_with_its_trial_and_rank_once_it_is_whole(tmp_path: Path, log: Path) -> None:
    echo = Echo(tmp_path, "exp_1")
    assert list(echo.lines(5)) == []
    log.write_bytes(b"first\nsecond, not ye")
    assert list(echo.lines(5)) == ["(trial 3, rank 1) first"]
    with log.open("ab") as file:
        file.write("t ready ✓\n".encode())
    assert list(echo.lines(5)) == ["(trial 3, rank 1) second, not yet ready ✓"]
    assert list(echo.lines(5)) == []


def test_a_progress_bar_is_one_line(tmp_path: Path, log: Path) -> None:
    echo = Echo(tmp_path, "exp_1")
    log.write_bytes(b"\r 10%|#\r 50%|#####\r100%|##########\ndone\r\n")
    assert list(echo.lines(5)) == ["(trial 3, rank 1) 100%|##########", "(trial 3, rank 1) done"]


def test_what_was_there_before_is_not_repeated(tmp_path: Path, log: Path) -> None:
    log.write_text("of the run before\n")
    echo = Echo(tmp_path, "exp_1")
    with log.open("a") as file:
        file.write("new\n")
    assert list(echo.lines(5)) == ["(trial 3, rank 1) new"]
