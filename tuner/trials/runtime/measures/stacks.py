"""Read the Python stacks of this process."""

from __future__ import annotations

import sys
import threading
import traceback


def stacks(first: int | None) -> str:
    """Return the stacks of all threads except Ray's and our own. first: the thread whose stack comes first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != first)
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in frames
        if not names.get(ident, "").startswith(("ray_", "tuner-"))
    )
