"""Look for garbage less often while modules are imported: all that is imported stays, and looking takes a tenth of the time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import Any

RARELY = 200_000
"""The number of new objects that triggers a collection in `rarely_collected`. Python's own value is 700, or 2,000 since 3.12."""
FIRST = 200_000
"""The number of new objects before the first collection after `collect_late`. Most commands of `tuner` make fewer."""


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Collect garbage rarely within a `with` block, and as often as before after it.

    What the block itself sets, such as the code of a user's module, stays set. Several threads may be in such blocks.
    """
    usual = gc.get_threshold()
    if not _may_wait(usual[0], RARELY):
        yield
        return
    gc.set_threshold(RARELY, *usual[1:])
    try:
        yield
    finally:
        if gc.get_threshold()[0] == RARELY:
            gc.set_threshold(*usual)


def collect_late() -> None:
    """Collect garbage for the first time after `FIRST` new objects, or when asked to, and as often as usual from then on."""
    usual = gc.get_threshold()
    if not _may_wait(usual[0], FIRST):
        return

    def begin(phase: str, about: Mapping[str, Any]) -> None:
        if phase == "stop":
            gc.callbacks.remove(begin)
            if gc.get_threshold()[0] == FIRST:  # nobody else has set it meanwhile
                gc.set_threshold(*usual)

    gc.set_threshold(FIRST, *usual[1:])
    gc.callbacks.append(begin)


def _may_wait(usual: int, longer: int) -> bool:
    """Return False if garbage is collected never, or rarely already."""
    return 0 < usual < longer
