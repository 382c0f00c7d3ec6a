"""Estimate regularly how much the search will still improve, so that a user can judge whether to continue."""

from __future__ import annotations

from tuner.domain.experiment import Spec
from tuner.schedulers.shared.forecast import expected_gain

HOUR_S = 3600.0


class Outlook:
    """Follows the best value. Part of `State`.

    Attributes:
        fresh: True after the report at which the training of all trials together reached one, two, four, ... hours.
    """

    def __init__(self, spec: Spec) -> None:
        self._metric = spec.objective.metric
        self._single = len(spec.objectives) == 1
        self._gpus = spec.scaling.bundle().get("GPU", 0.0) * spec.scaling.num_workers
        self._total = 0.0  # seconds of all trials together
        self._due = HOUR_S
        self._work: list[float] = []  # the total at each improvement
        self._score: list[float] = []
        self.fresh = False

    def reported(self, seconds: float, score: float | None) -> None:
        """Add a report: the seconds since the previous one, and its score (None if it violates the constraints or has none)."""
        self._total += seconds
        if score is not None and (not self._score or score > self._score[-1]):
            self._work.append(self._total)
            self._score.append(score)
        self.fresh = self._total >= self._due
        while self._total >= self._due:
            self._due *= 2

    def in_words(self) -> str | None:
        """Return the expected improvement if the training is doubled, in words; None if it is not known."""
        gain = expected_gain(self._work, self._score, self._total, self._total) if self._single else None
        if gain is None:
            return None
        hours = self._total * (self._gpus or 1.0) / HOUR_S
        trained = f"{hours:.3g} {'GPU hours' if self._gpus else 'hours of training, summed over all trials'}"
        more = f"the same amount of training again is expected to improve {self._metric} by {gain.mean:.3g}"
        sure = f"with a probability of 90 % by at most {gain.high:.3g}"
        return f"after {trained}: {more}, {sure}; the chance of any improvement is {gain.chance:.0%}"
