"""Send a rank's requests to the driver, by calling the driver's actor or over a socket."""

from __future__ import annotations

import time
from typing import Any, Protocol

from tuner.errors import DriverSilent

_PATIENCE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class DriverLink(Protocol):
    """The connection by which a rank sends requests to the driver."""

    def ask(self, question: str, *args: Any, patience_s: float = _PATIENCE_S) -> Any:
        """Call the method `question` of the driver, and return its answer. The method may run more than once.

        Raises:
            DriverSilent: the driver could not be reached for `patience_s` seconds.
        """

    def object(self, segment_id: str, stored: Any) -> Any:
        """Return an object that was stored with the training code; see `objects.Stored`."""


class RayDriver:
    """The `DriverLink` to a driver that is a Ray actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def ask(self, question: str, *args: Any, patience_s: float = _PATIENCE_S) -> Any:
        """Call a method of the actor, and return its answer. If the method raises an error, raise the same error here.

        If the actor is alive but the connection has broken, Ray raises `ActorUnavailableError`, and the call is retried.
        """
        import ray

        try:
            return ask(getattr(self._actor, question), *args, patience_s=patience_s)
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None

    def object(self, segment_id: str, stored: Any) -> Any:
        """Return an object that was stored with the training code. It comes from Ray's object store."""
        import ray

        return ray.get(self.ask("object", segment_id, stored)[0])


def ask(method: Any, *args: Any, patience_s: float = _PATIENCE_S, in_time: bool = False) -> Any:
    """Call a method of an actor, and return its answer.

    If Ray cannot reach the actor, repeat the call for up to `patience_s` seconds, and then raise DriverSilent.

    in_time: True if the answer, too, must come within these seconds. If it does not, raise Ray's GetTimeoutError.
    """
    import ray

    deadline, pause = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return ray.get(method.remote(*args), timeout=max(0.0, deadline - time.monotonic()) if in_time else None)
        except ray.exceptions.ActorUnavailableError as error:
            if time.monotonic() + pause > deadline:
                raise DriverSilent(f"the driver cannot be reached: {error}") from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
