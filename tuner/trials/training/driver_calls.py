"""What training code may ask of the driver beside reporting, and what is made ready in a process for its sake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.trials import objects, ray_compat
from tuner.trials.asking import ask
from tuner.trials.objects import Stored
from tuner.trials.session import OutsideTrial, Session


class Desk:
    """One rank's questions about one segment. Every rank may ask the same; all get the same answer."""

    def __init__(self, driver: Any, segment_id: str) -> None:
        self._driver, self._segment = driver, segment_id

    def draw(self, name: str, distribution: str) -> Any:
        """The value of a parameter that is known only now; `distribution` is Optuna's JSON."""
        return self._ask("draw", name, distribution)

    def note(self, notes: Mapping[str, Any]) -> None:
        """Leave something with the trial for people to read; JSON values."""
        self._ask("note", dict(notes))

    def end(self, reason: str) -> None:
        """The trial stops itself: it counts as stopped early, not as completed."""
        self._ask("end", reason)

    def object(self, stored: Stored) -> Any:
        """An object that came with the training code, from Ray's object store."""
        import ray

        return ray.get(self._ask("object", stored)[0])

    def _ask(self, question: str, *args: Any) -> Any:
        import ray

        try:
            return ask(getattr(self._driver, question), self._segment, *args)
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None


_here: Desk | None = None


def here() -> Desk:
    """The desk of the trial that runs in this process."""
    if _here is None:
        raise OutsideTrial("this only means something inside a trial")
    return _here


def equip(session: Session, driver: Any) -> Callable[[], None]:
    """Make the process ready for user code: Ray's functions answer, objects come, questions are taken. Returns the undoing."""
    global _here
    _here = Desk(driver, session.context.segment_id)
    objects.fetch_by(_here.object)
    leave_ray = ray_compat.install(session)

    def undo() -> None:
        global _here
        leave_ray()
        objects.fetch_by(None)
        _here = None

    return undo
