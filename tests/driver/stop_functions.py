"""Stop functions of all kinds, for tests of the code that calls them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

PIDS: list[int] = []


def at_two(number: int, metrics: dict[str, float]) -> bool:
    print("this must not come between the answers")
    return metrics["training_iteration"] >= 2


def never(number: int, metrics: dict[str, float]) -> bool:
    return False


def misspelt(number: int, metrics: dict[str, float]) -> bool:
    return metrics["los"] > 1


def hangs_for_the_first(number: int, metrics: dict[str, float]) -> bool:
    if number == 0:
        time.sleep(3600)
    return True


def ends_its_process(number: int, metrics: dict[str, float]) -> bool:
    os._exit(3)


def ends_once(number: int, metrics: dict[str, float]) -> bool:
    marker = Path(os.environ["MARKER"])
    if not marker.exists():
        marker.touch()
        os._exit(3)
    return True


def where(number: int, metrics: dict[str, float]) -> bool:
    Path(os.environ["MARKER"]).write_text(str(os.getpid()))
    return metrics["training_iteration"] >= 2


def waits_for_the_marker(number: int, metrics: dict[str, float]) -> bool:
    while not Path(os.environ["MARKER"]).exists():
        time.sleep(0.01)
    return True


def starts_a_process(number: int, metrics: dict[str, float]) -> bool:
    Path(os.environ["MARKER"]).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
    return True
