"""The requests that training code may send to the driver, besides reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from tuner.errors import OutsideTrial
from tuner.trials.checkpoints import objects
from tuner.trials.checkpoints.objects import Stored
from tuner.trials.messages.rpc import DriverLink


class DriverCalls:
    """Sends one rank's requests about its segment. All ranks get the same answer to the same request."""

    def __init__(self, driver: DriverLink, segment_id: str) -> None:
        self._driver, self._segment = driver, segment_id

    def draw(self, name: str, distribution: str) -> Any:
        """Return the value that the driver chooses for a parameter.

        distribution: the distribution of the parameter, in Optuna's JSON form.
        """
        return self._ask("draw", name, distribution)

    def note(self, notes: Mapping[str, Any]) -> None:
        """Attach JSON values to the trial, as notes for people to read."""
        self._ask("note", dict(notes))

    def end(self, reason: str) -> None:
        """Stop the trial. It counts as stopped early, not as completed. reason: words that follow "stopped"."""
        self._ask("end", reason)

    def object(self, stored: Stored) -> Any:
        """Return an object that was stored with the training function, by `tuner.with_parameters`."""
        return self._driver.object(self._segment, stored)

    def _ask(self, question: str, *args: Any) -> Any:
        return self._driver.ask(question, self._segment, *args)


_here: DriverCalls | None = None


def here() -> DriverCalls:
    """Return the `DriverCalls` of the trial that is running in this process. Raise OutsideTrial if there is none."""
    if _here is None:
        raise OutsideTrial("this works only inside a trial")
    return _here


def open_for(driver: DriverLink, segment_id: str) -> Callable[[], None]:
    """Make `here` return an object that sends requests about this segment to `driver`.

    Return a function that undoes this, to be called when the segment has ended.
    """
    global _here
    _here = DriverCalls(driver, segment_id)
    objects.fetch_by(_here.object)
    return _close


def _close() -> None:
    global _here
    objects.fetch_by(None)
    _here = None


# A forked process shares the rank's connection to the driver. It reads stored objects from their files.
os.register_at_fork(after_in_child=_close)
