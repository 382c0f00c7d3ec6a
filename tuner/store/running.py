"""The clock of an experiment, which runs while the experiment runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class RunningClock:
    """The clock of an experiment.

    Attributes:
        start: the time at which it is zero.
        pauses: (start, end) of each interval during which it is stopped, in order; the end of the newest one may be None.
    """

    start: float
    pauses: Sequence[tuple[float, float | None]] = ()

    def seconds(self, times: ArrayLike) -> NDArray[np.float64]:
        """Return what the clock shows at these Unix timestamps. Before `start`, it shows negative values."""
        asked = np.asarray(times, np.float64)
        if not self.pauses:
            return asked - self.start
        at, shown = [self.start], [0.0]
        for begin, end in self.pauses:
            at += [max(begin, at[-1]), np.inf if end is None else max(end, at[-1])]
            shown += [shown[-1] + at[-2] - at[-3]] * 2
        marks, values = np.array(at), np.array(shown)
        last = np.maximum(np.searchsorted(marks, asked, side="right") - 1, 0)
        runs = last % 2 == 0  # True after the start, or after the end of a pause
        return values[last] + np.where(runs, asked - marks[last], 0.0)

    def times(self, seconds: ArrayLike) -> NDArray[np.float64]:
        """Return the times at which the clock shows these seconds. If it shows them throughout a pause, return its end."""
        asked = np.asarray(seconds, np.float64)
        ended = [(begin, end) for begin, end in self.pauses if end is not None]
        marks = np.array([self.start, *(end for _, end in ended)])
        shown = np.array([0.0, *self.seconds([begin for begin, _ in ended])])
        last = np.maximum(np.searchsorted(shown, asked, side="right") - 1, 0)
        return np.asarray(marks[last] + asked - shown[last], np.float64)
