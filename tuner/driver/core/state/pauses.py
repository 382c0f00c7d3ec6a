"""Record when an experiment did not run."""

from __future__ import annotations

from tuner.domain.states import ExperimentState

_X = ExperimentState
_RUNS = frozenset({_X.PENDING, _X.RUNNING, _X.PAUSING, _X.CANCELLING})


class Pauses:
    """The intervals in which an experiment was paused, had ended before a user continued it, or had no driver.

    A forward jump of the driver's clock is one, too. Part of `State`.

    Attributes:
        spans: (start, end) of each interval, in order and without overlap. The end of the newest one is None while it lasts,
            and after the end of the experiment.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[float, float | None]] = []

    @property
    def lasts(self) -> bool:
        """Return whether the newest interval has not ended."""
        return bool(self.spans) and self.spans[-1][1] is None

    def follow(self, state: ExperimentState, time: float) -> None:
        """Begin or end an interval if this state, which holds from `time` on, requires it."""
        if (state in _RUNS) != self.lasts:
            return
        if not self.lasts:
            self.spans.append((time, None))
            return
        start, _ = self.spans.pop()
        self.without_driver(start, time)

    def without_driver(self, start: float, end: float) -> None:
        """Add an interval that has ended."""
        if end > start and not self.lasts:
            self.spans.append((start, end))
