"""A stopper that ends the search when more training is no longer worth its cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.domain.trial import Population, Trial
from tuner.options import check_number
from tuner.plurals import counted
from tuner.schedulers.base import Fact, TrialReported
from tuner.schedulers.shared.forecast import FACTORS, Gain, expected_gain, room
from tuner.schedulers.shared.wording import reported, shown
from tuner.schedulers.stoppers.base import Stopper

HOUR_S = 3600.0


class ExpectedImprovementStopper(Stopper):
    """Ends the search when another GPU hour is expected to improve the best value by too little.

    It uses the same forecast as `GET /experiments/{id}/forecast`, which extrapolates the past improvement of the best
    value. The search never ends before it has trained for half of `hours`, because the forecast adds at most twice the
    training so far.

    Args:
        least: the expected improvement, in the unit of the objective, below which the search ends.
        hours: the GPU hours to which the expected improvement refers. If trials use no GPUs, these are hours of training,
            summed over trials: if four trials run at once, an hour of the experiment counts as four.
    """

    TYPE = "expected_improvement"

    @dataclass(slots=True)
    class State:
        trained: dict[int, float] = field(default_factory=dict)  # trial -> seconds
        total: float = 0.0  # the training of all trials together
        work: list[float] = field(default_factory=list)  # the training at each improvement
        score: list[float] = field(default_factory=list)

    def __init__(self, least: float, hours: float = 1.0) -> None:
        check_number("least", least, above=0)
        check_number("hours", hours, above=0)
        self.least = least
        self.hours = hours
        self.state = ExpectedImprovementStopper.State()

    def milestone(self, trial: Trial) -> float | None:
        return None

    def record(self, fact: Fact, trials: Population) -> None:
        if not isinstance(fact, TrialReported):
            return
        state: ExpectedImprovementStopper.State = self.state
        trial = trials[fact.trial]
        state.total += max(trial.running_s - state.trained.get(fact.trial, 0.0), 0.0)
        state.trained[fact.trial] = trial.running_s
        if trial.feasible_now is not False and (not state.score or fact.score > state.score[-1]):
            state.work.append(state.total)
            state.score.append(fact.score)

    def finished(self, trials: Population) -> str | None:
        state: ExpectedImprovementStopper.State = self.state
        gain = self._gain()
        if gain is None or gain.mean >= self.least:
            return None
        objective = self.context.objective
        hours = counted(self.hours, "more GPU hour" if self.context.gpus else "more hour", ".6g")
        if not self.context.gpus:
            hours += " of training"
        more = f"{hours} would improve {objective.metric} by {gain.mean:.3g} on average"
        chance = f"the chance of a better one is {100 * gain.chance:.0f} %"
        best = f"the best value is {reported(objective, state.score[-1])}, and {chance}"
        return f"{more}, which is below {shown(self.least)}; {best}"

    def _gain(self) -> Gain | None:
        """Return the expected gain of the next `hours` of training, or None if it cannot be forecast yet."""
        state: ExpectedImprovementStopper.State = self.state
        more = self.hours * HOUR_S / (self.context.gpus or 1.0)
        if not state.score or more > (FACTORS[-1] - 1) * state.total:
            return None
        rest = room(self.context.objective, state.score)
        return expected_gain(state.work, state.score, state.total, more, rest)
