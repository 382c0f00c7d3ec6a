"""Put into words why freeze-thaw pauses, resumes or starts a trial, with the numbers that were compared.

The conclusion comes first, then the numbers. For example:

    paused at iteration 5: trial 12 is more likely to reach a loss below 0.31; 14 % by iteration 12 (expected loss 0.35 ± 0.05),
    against 2.1 % by iteration 9 (expected loss 0.41 ± 0.04); compared: 13 started trials and new configurations
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.domain.experiment import Objective
from tuner.schedulers.freeze_thaw.decisions.acquisition import RIVAL, Forecast, Winner
from tuner.schedulers.shared.wording import at


@dataclass(frozen=True, slots=True)
class Reasons:
    """Puts decisions into words, for one objective and time_attr."""

    objective: Objective
    time_attr: str

    def paused(self, t: float, winner: Winner) -> str:
        """Say why `winner` trains instead of the trial that has just reported at time t."""
        said = (
            f"paused at {at(self.time_attr, t)}: {_name(winner.trial)} {self._ahead(winner, winner.held is not None)}"
        )
        said += f"; {self._claim(winner, winner.trial, winner.forecast)}"
        if winner.held is not None:
            said += f", against {self._claim(winner, 0, winner.held)}"
        return f"{said}; {_compared(winner)}"

    def resumed(self, winner: Winner) -> str:
        """Say why `winner` is resumed."""
        return f"resumed: it {self._best(winner)}; {_compared(winner)}"

    def started(self, winner: Winner) -> str:
        """Say why the new configuration `winner` is started."""
        return f"started: the model chose this configuration, which {self._best(winner)}; {_compared(winner)}"

    def _best(self, winner: Winner) -> str:
        said = f"{self._ahead(winner, False)}; {self._claim(winner, winner.trial, winner.forecast)}"
        if winner.rival is None:
            return said
        trial, forecast = winner.rival
        only_one_is_new = (trial is None) != (winner.trial is None)
        demand = f"; a new configuration must promise {RIVAL} times as much" if winner.thaw and only_one_is_new else ""
        return f"{said}; next best: {_name(trial)}, {self._chance(winner, trial, forecast)}{demand}"

    def _ahead(self, winner: Winner, more: bool) -> str:
        """Return what the winner promises, as a phrase. more: True to compare it with one trial, False with all trials."""
        metric = self.objective.metric
        if winner.thaw:
            return f"is expected to improve the best {metric} {'more' if more else 'most'}"
        side = "above" if self.objective.mode == "max" else "below"
        article = "an" if metric[:1].lower() in "aeiou" else "a"
        goal = f"reach {article} {metric} {side} {_rounded(self.objective.score(winner.goal), 4)}"
        if self._past_the_end(winner):
            goal = f"improve {metric} greatly"
        return f"is {'more' if more else 'most'} likely to {goal}"

    def _past_the_end(self, winner: Winner) -> bool:
        """Return whether the goal, which is drawn at random, is an accuracy above 1, a loss below 0 or the like.

        No trial can reach such a value, so it is not shown.
        """
        goal, expected = self.objective.score(winner.goal), self.objective.score(winner.forecast.mean)
        return goal > 1 >= expected >= 0 if self.objective.mode == "max" else goal < 0 <= expected

    def _claim(self, winner: Winner, trial: int | None, forecast: Forecast) -> str:
        mean = self.objective.score(forecast.mean)
        expected = f"expected {self.objective.metric} {_rounded(mean, 3)} ± {_rounded(forecast.sd, 1)}"
        return f"{self._chance(winner, trial, forecast)} ({expected})"

    def _chance(self, winner: Winner, trial: int | None, forecast: Forecast) -> str:
        def amount(value: float) -> str:
            if winner.thaw:
                return _rounded(value, 2)
            return f"{_rounded(100 * value, 2)} %" if value >= 1e-4 else "less than 0.01 %"

        said = f"{amount(forecast.chance)} by {at(self.time_attr, forecast.until)}"
        if forecast.adjusted >= 0.99 * forecast.chance:
            return said
        costs = "resuming it costs time"
        if trial is None:
            costs = "a start costs time and similar configurations were tried"
        return f"{said}, counted as {amount(forecast.adjusted)} because {costs}"


def _rounded(value: float, digits: int) -> str:
    """Return the value with this many significant digits, or as a whole number if it has more digits before the point."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text and 1 <= abs(value) < 1e9 else text


def _compared(winner: Winner) -> str:
    some = f"{winner.compared}" if winner.compared == winner.started else f"{winner.compared} of {winner.started}"
    kinds = [f"{some} started trial{'s' if winner.started != 1 else ''}"] if winner.started else []
    return f"compared: {' and '.join([*kinds, *(['new configurations'] if winner.new else [])])}"


def _name(trial: int | None) -> str:
    return "a new configuration" if trial is None else f"trial {trial}"
