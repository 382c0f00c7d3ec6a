"""Keep the garbage collections of a driver host short, because no verdict is given during one.

A full collection looks at all Python objects. A driver host keeps the objects of loaded libraries and those of ended trials
for a long time, and every full collection would look at them again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any

LONG_S = 0.02
"""Seconds that a full collection may take. If one takes longer, later collections leave out the objects that existed then."""


class ShortCollections:
    """Excludes objects from later collections if a collection was slow. They are still freed once nothing refers to them.

    Only reference cycles that were in use at the time of such a collection are never freed. Such collections are rare:
    each needs so many new objects that it takes `LONG_S` to look at them.
    """

    def __init__(self) -> None:
        self._begun = 0.0

    def begin(self) -> None:
        """Exclude all present objects, such as those of loaded libraries, and watch all later collections."""
        gc.collect()
        gc.freeze()
        self.end()
        gc.callbacks.append(self._watch)

    def end(self) -> None:
        """Stop watching collections, if they are watched."""
        if self._watch in gc.callbacks:
            gc.callbacks.remove(self._watch)

    def _watch(self, phase: str, about: Mapping[str, Any]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        elif about["generation"] == 2 and time.perf_counter() - self._begun > LONG_S:
            gc.freeze()
