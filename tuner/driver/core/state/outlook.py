"""Estimate how much more training would improve the best value, so that users can judge whether to continue the search."""

from __future__ import annotations

from tuner.domain.experiment import Spec
from tuner.plurals import counted
from tuner.schedulers.shared.forecast import expected_gain, room

HOUR_S = 3600.0


class Outlook:
    """Follows the best value of an experiment over its training time. Part of `State`.

    Attributes:
        fresh: True if the newest report brought the training of all trials together to one, two, four, ... hours, so
            that it is time for a new estimate.
    """

    def __init__(self, spec: Spec) -> None:
        self._objective = spec.objective
        self._single = len(spec.objectives) == 1
        self._gpus = spec.scaling.bundle().get("GPU", 0.0) * spec.scaling.num_workers
        self._total = 0.0  # seconds of training of all trials together
        self._due = HOUR_S
        self._work: list[float] = []  # `_total` at each improvement of the best value
        self._score: list[float] = []
        self.fresh = False

    def reported(self, seconds: float, score: float | None) -> None:
        """Add a report: the seconds since the trial's previous report, and the score.

        score: None if the report has no finite objective or violates the constraints.
        """
        self._total += seconds
        if score is not None and (not self._score or score > self._score[-1]):
            self._work.append(self._total)
            self._score.append(score)
        self.fresh = self._total >= self._due
        while self._total >= self._due:
            self._due *= 2

    def in_words(self) -> str | None:
        """Say how much the best value would improve if the total training were doubled. Return None if that is unknown."""
        if not self._single or not self._score:
            return None
        rest = room(self._objective, self._score)
        gain = expected_gain(self._work, self._score, self._total, self._total, rest)
        if gain is None:
            return None
        hours = self._total * (self._gpus or 1.0) / HOUR_S
        trained = counted(hours, "GPU hour" if self._gpus else "hour", ".3g")
        if not self._gpus:
            trained += " of training, summed over all trials"
        chance = f"the chance of any improvement is {100 * gain.chance:.0f} %"
        again = f"after {trained}: the same amount of training again"
        if gain.mean >= rest:  # the estimate is at least the largest possible gain, so it says nothing
            return f"{again} would improve {self._objective.metric} by an amount that is not known yet; {chance}"
        more = f"{again} is expected to improve {self._objective.metric} by {gain.mean:.3g}"
        return f"{more}, with a probability of 90 % by at most {gain.high:.3g}; {chance}"
