"""Checks of segments and of processes that several test modules share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from tests.trials.conftest import Bench, LocalBench
from tuner.domain.events import Failure
from tuner.domain.segments import Verdict
from tuner.trials.messages.launch import Launch


def failed(bench: Bench | LocalBench, launch: Launch, verdicts: dict[int, Verdict] | None = None) -> Failure:
    outcome = bench.run(launch, verdicts)
    assert outcome.kind == "failed", outcome
    assert outcome.failure is not None
    assert outcome.failure.rank in (0, None)
    return outcome.failure


def pid_of(bench: Bench | LocalBench, launch: Launch) -> int:
    return int(bench.started(launch)["ranks"][0]["pid"])


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(happened: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)
