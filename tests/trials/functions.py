"""Training functions that several test modules share. Ranks import this module, so it imports little."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def report(checkpoint: Any = None, **metrics: float) -> None:
    from tuner.trials.training import session

    session.report(metrics, checkpoint=checkpoint)


def reports_twice(config: dict[str, Any]) -> None:
    print("trial", config.get("name"))
    report(pid=os.getpid())
    report(pid=os.getpid())


def dies(config: dict[str, Any]) -> None:
    report(a=1)
    print("the last words")
    signal.raise_signal(config["signal"])
    time.sleep(100)


def hangs(config: dict[str, Any]) -> None:
    report(a=1)
    time.sleep(1000)


def goes_on(config: dict[str, Any]) -> None:
    while True:
        report(a=1)
        time.sleep(0.01)
