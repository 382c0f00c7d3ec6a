"""Look for garbage less often while modules are imported: all that is imported stays, and looking takes a tenth of the time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

RARELY = 200_000
"""The number of new objects that triggers a collection in `rarely_collected`. Python's own value is 700, or 2,000 since 3.12."""


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Collect garbage rarely within a `with` block, and as often as before after it.

    What the block itself sets, such as the code of a user's module, stays set. Several threads may be in such blocks.
    """
    usual = gc.get_threshold()
    if not 0 < usual[0] < RARELY:  # never, or rarely already
        yield
        return
    gc.set_threshold(RARELY, *usual[1:])
    try:
        yield
    finally:
        if gc.get_threshold()[0] == RARELY:
            gc.set_threshold(*usual)
