"""The requests that training code may send to the driver, besides reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.trials.checkpoints import objects
from tuner.trials.checkpoints.objects import Stored
from tuner.trials.messages.rpc import DriverLink
from tuner.trials.training.session import OutsideTrial


class DriverCalls:
    """The calls of one rank to the driver about its segment. The same call gets the same answer on all ranks."""

    def __init__(self, driver: DriverLink, segment_id: str) -> None:
        self._driver, self._segment = driver, segment_id

    def draw(self, name: str, distribution: str) -> Any:
        """Return the value of a parameter that the code has just defined. `distribution` is Optuna's JSON."""
        return self._ask("draw", name, distribution)

    def note(self, notes: Mapping[str, Any]) -> None:
        """Attach JSON values to the trial, for people to read."""
        self._ask("note", dict(notes))

    def end(self, reason: str) -> None:
        """Stop the trial from its training code. It counts as stopped early, not as completed."""
        self._ask("end", reason)

    def object(self, stored: Stored) -> Any:
        """Return an object that was stored with the training code."""
        return self._driver.object(self._segment, stored)

    def _ask(self, question: str, *args: Any) -> Any:
        return self._driver.ask(question, self._segment, *args)


_here: DriverCalls | None = None


def here() -> DriverCalls:
    """Return the calls of the trial that runs in this process. Raise OutsideTrial if there is none."""
    if _here is None:
        raise OutsideTrial("this works only inside a trial")
    return _here


def open_for(driver: DriverLink, segment_id: str) -> Callable[[], None]:
    """Let the training code in this process send requests about this segment to `driver`.

    Return a function that ends this connection.
    """
    global _here
    _here = DriverCalls(driver, segment_id)
    objects.fetch_by(_here.object)

    def close() -> None:
        global _here
        objects.fetch_by(None)
        _here = None

    return close
