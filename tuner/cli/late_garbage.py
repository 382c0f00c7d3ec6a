"""Collect garbage late in a command: what it imports stays, and looking for garbage in it takes a tenth of the time."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

FIRST = 200_000
"""The number of new objects before the first collection after `collect_late`. Most commands of `tuner` make fewer."""


def collect_late() -> None:
    """Collect garbage for the first time after `FIRST` new objects, or when asked to, and as often as usual from then on."""
    usual = gc.get_threshold()
    if not 0 < usual[0] < FIRST:  # never, or rarely already
        return

    def begin(phase: str, about: Mapping[str, Any]) -> None:
        if phase == "stop":
            gc.callbacks.remove(begin)
            if gc.get_threshold()[0] == FIRST:  # nobody else has set it meanwhile
                gc.set_threshold(*usual)

    gc.set_threshold(FIRST, *usual[1:])
    gc.callbacks.append(begin)
