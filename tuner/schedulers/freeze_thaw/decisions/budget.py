"""Limit how much freeze-thaw trains, and choose the trial that it trains to the end."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial
from tuner.plurals import counted
from tuner.schedulers.base import SchedulerContext
from tuner.schedulers.shared.wording import shown

SHARE = 5  # the derived budget is one full training per SHARE trials,
LEAST = 3  # but at least this many, or one per trial if there are fewer trials
# At most this many trials are chosen as the leading trial, in case a leading trial fails or is overtaken.
FINISH_TRIES = 3


def repeated_training(trial: Trial) -> float:
    """Return how much training a paused trial has to repeat when it is resumed, in units of time_attr.

    That is the training between the trial's newest checkpoint and its newest report.
    """
    if not trial.iteration:
        return 0.0
    step = trial.checkpoint.step if trial.checkpoint is not None else 0
    return trial.t * max(0.0, 1 - step / trial.iteration)


def derived(samples: int) -> float:
    """Return the default budget of a search with this many trials, in full trainings."""
    return float(min(samples, max(LEAST, samples / SHARE)))


class Budget:
    """The amount of training that all trials together may take, in full trainings of `end` units of time_attr each.

    A part of the budget is reserved for the leading trial: as much as that trial needs to reach max_t, but at most half
    of the budget.

    granted: the lower bound of a derived budget, which is raised when users add trials.
    """

    def __init__(
        self, own: float | None, finish_best: bool, end: float, context: SchedulerContext, granted: float = 0.0
    ) -> None:
        self._given = own if own is not None else context.budget
        self._finish_best = finish_best
        self._end = end
        self._context = context
        self._granted = granted
        self.total = self._total()  # the limit in full trainings; None: no limit

    def _total(self) -> float | None:
        if self._given is not None:
            return float(self._given)
        samples = self._context.num_samples
        if samples is None or self._context.time_budget_s is not None:
            return None
        return max(derived(samples), self._granted)

    @property
    def is_derived(self) -> bool:
        """Return True if the budget is derived from num_samples because the user set none."""
        return self._given is None and self.total is not None

    def share(self, spent: float) -> float | None:
        """Return the share of the budget that is spent, at most 1; None without a budget, or if nothing is spent yet."""
        return min(spent / (self.total * self._end), 1.0) if self.total and spent else None

    def is_spent(self, spent: float, finishing: Sequence[int], trials: Population) -> bool:
        """Return True if the budget is spent, except for the part that is reserved for the leading trial.

        `spent` is the training so far, in units of time_attr. `finishing` lists the trials that have been chosen as the
        leading trial.
        """
        if self.total is None:
            return False
        whole = self.total * self._end
        if spent + min(self._end, whole / 2) < whole:  # even the largest reserve leaves some of the budget
            return False
        reserved = 0.0
        if spent < whole and (leader := self.leader(finishing, trials)) is not None:
            reserved = min(self._remaining(trials[leader]), whole / 2)
        return spent + reserved >= whole

    def leader(self, finishing: Sequence[int], trials: Population) -> int | None:
        """Return the trial to train to max_t before the search ends, or None if the leading trial has reached max_t.

        The trial with the best score leads. Among trials with equal scores, the trial that has trained longer leads.
        Trials that ended before max_t and trials that a user has paused are ignored. At most FINISH_TRIES trials are
        chosen.
        """
        if not self._finish_best or self.total is None or self.total < 1:
            return None
        objective, ended = self._context.objective, (TrialState.STOPPED, TrialState.FAILED, TrialState.CANCELLED)
        best: tuple[float, bool, float, int] | None = None
        for trial in trials:
            value = self._value(trial)
            if value is None or trial.state in ended or trial.held or trial.diverged or trial.feasible is False:
                continue
            place = (objective.score(value), trial.state is TrialState.COMPLETED, trial.t, -trial.number)
            if best is None or place > best:
                best = place
        if best is None or best[1]:
            return None
        leader = -best[3]
        return leader if leader in finishing or len(finishing) < FINISH_TRIES else None

    def _value(self, trial: Trial) -> float | None:
        mark = trial.mark(self._context.scope)
        return None if mark is None else mark.value

    def _remaining(self, trial: Trial) -> float:
        """Return the training that the trial still needs to reach max_t, including the training that it must repeat."""
        again = 0.0 if trial.state is TrialState.RUNNING else repeated_training(trial)
        return max(0.0, self._end - trial.t) + again

    def in_words(self) -> str | None:
        """Return, in words, the budget and the argument that raises it; None if there is no limit."""
        if self.total is None:
            return None
        unit = "iterations" if self._context.time_attr == "training_iteration" else f"of {self._context.time_attr}"
        trainings = counted(self.total, "full training", ".6g")
        said = f"{trainings} ({shown(self.total * self._end)} {unit}), shared by all trials"
        if self._given is not None:
            return f"{said}; to raise it, set a larger budget=..."
        samples = self._context.num_samples or 0
        enough = samples if samples < LEAST else max(samples, LEAST * SHARE)
        return f"{said}, derived from num_samples={samples}; to raise it, set budget=... or num_samples above {enough}"

    def why_finish(self, trial: Trial) -> str:
        """Return why the leading trial continues although the rest of the budget is spent."""
        name = self._context.objective.metric
        best = f"its {name} of {shown(self._value(trial) or 0.0)} is the best so far"
        return f"trained to the end as the leading trial: {best}, and the rest of the budget is reserved for it"

    def why_spent(self) -> str:
        """Return a phrase that says that the budget is spent."""
        trainings = counted(self.total or 0, "full training", ".6g")
        return f"the budget of {trainings} is spent"
