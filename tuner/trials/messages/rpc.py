"""Calls of the driver's actor by a rank."""

from __future__ import annotations

import time
from typing import Any

from tuner.errors import DriverSilent

_PATIENCE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


def ask(method: Any, *args: Any, patience_s: float = _PATIENCE_S) -> Any:
    """Call a method of an actor and return its answer.

    If Ray cannot reach the actor for a while (`ActorUnavailableError`: a connection broke, but the actor is alive),
    call again, for up to `patience_s` seconds, then raise DriverSilent. The method may therefore run more than once.
    """
    import ray

    deadline, pause = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return ray.get(method.remote(*args))
        except ray.exceptions.ActorUnavailableError as error:
            if time.monotonic() + pause > deadline:
                raise DriverSilent(f"the driver cannot be reached: {error}") from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
