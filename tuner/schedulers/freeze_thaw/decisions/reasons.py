"""Put into words why freeze-thaw pauses, resumes or starts a trial, with the numbers that were compared.

The conclusion comes first, then the numbers. For example:

    paused at iteration 5 in favor of trial 12, which has a 14 % chance of a loss below 0.31 by iteration 12 (predicted loss
    0.35 ± 0.05); this trial's chance is 2.1 % by iteration 9 (predicted loss 0.41 ± 0.04); 13 started trials and new
    configurations were compared
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.domain.experiment import Objective
from tuner.schedulers.freeze_thaw.decisions.acquisition import RIVAL, Forecast, Winner
from tuner.schedulers.shared.wording import time_in_words


@dataclass(frozen=True, slots=True)
class Reasons:
    """Puts decisions into words, for one objective and time_attr."""

    objective: Objective
    time_attr: str

    def paused(self, t: float, winner: Winner) -> str:
        """Say why `winner` trains instead of the trial that has just reported at time t."""
        said = f"paused at {time_in_words(self.time_attr, t)} in favor of {_name(winner.trial)}, which {self._prediction(winner)}"
        if (held := winner.held) is not None:
            what = "this trial's expected improvement" if winner.thaw else "this trial's chance"
            said += f"; {what} is {self._by(winner, held)}{self._expected(held)}{self._counted(winner, 0, held)}"
        return f"{said}; {_candidates(winner)} were compared"

    def resumed(self, winner: Winner) -> str:
        """Say why `winner` is resumed."""
        return f"resumed: it {self._best(winner)}"

    def started(self, winner: Winner) -> str:
        """Say why the new configuration `winner` is started."""
        return f"started with a configuration that the model chose: it {self._best(winner)}"

    def _best(self, winner: Winner) -> str:
        said = f"{self._prediction(winner)}; it is the most promising of {_candidates(winner)}"
        if winner.rival is None:
            return said
        trial, forecast = winner.rival
        said += f", before {_name(trial)} with {self._by(winner, forecast)}{self._counted(winner, trial, forecast)}"
        if winner.thaw and (trial is None) != (winner.trial is None):
            said += f"; a new configuration is preferred only if its expected improvement is {RIVAL} times as large"
        return said

    def _prediction(self, winner: Winner) -> str:
        """Return the forecast of the winner: ``has a 14 % chance of a loss below 0.31 by iteration 12 (predicted loss ...)``."""
        metric, forecast = self.objective.metric, winner.forecast
        more = self._expected(forecast) + self._counted(winner, winner.trial, forecast)
        until = time_in_words(self.time_attr, forecast.until)
        if winner.thaw:
            best = _rounded(self.objective.score(winner.goal), 4)
            amount = self._amount(winner, forecast.chance)
            return f"has an expected improvement of {amount} over the best {metric}, {best}, by {until}{more}"
        side = "above" if self.objective.mode == "max" else "below"
        article = "an" if metric[:1].lower() in "aeiou" else "a"
        goal = f"{article} {metric} {side} {_rounded(self.objective.score(winner.goal), 4)}"
        if self._past_the_end(winner):
            goal = f"{article} {metric} far {side} the best one"
        return f"has a {self._amount(winner, forecast.chance)} chance of {goal} by {until}{more}"

    def _past_the_end(self, winner: Winner) -> bool:
        """Return whether no trial can reach the goal, such as an accuracy above 1.

        Goals are drawn at random. A goal that no trial can reach is not shown.
        """
        goal, expected = self.objective.score(winner.goal), self.objective.score(winner.forecast.mean)
        return goal > 1 >= expected >= 0 if self.objective.mode == "max" else goal < 0 <= expected

    def _expected(self, forecast: Forecast) -> str:
        mean = self.objective.score(forecast.mean)
        return f" (predicted {self.objective.metric} {_rounded(mean, 3)} ± {_rounded(forecast.sd, 1)})"

    def _by(self, winner: Winner, forecast: Forecast) -> str:
        return f"{self._amount(winner, forecast.chance)} by {time_in_words(self.time_attr, forecast.until)}"

    def _counted(self, winner: Winner, trial: int | None, forecast: Forecast) -> str:
        """Return the value by which candidates were compared, and why it is lower than the forecast; "" if it is not."""
        if forecast.adjusted >= 0.99 * forecast.chance:
            return ""
        costs = "resuming it takes time"
        if trial is None:
            costs = "a start takes time and similar configurations were tried"
        return f", counted as {self._amount(winner, forecast.adjusted)} because {costs}"

    def _amount(self, winner: Winner, value: float) -> str:
        """Return a chance or, in a thaw decision, an improvement."""
        if winner.thaw:
            return _rounded(value, 2)
        return f"{_rounded(100 * value, 2)} %" if value >= 1e-4 else "less than 0.01 %"


def _rounded(value: float, digits: int) -> str:
    """Return the value with this many significant digits, or as a whole number if it has more digits before the point."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text and 1 <= abs(value) < 1e9 else text


def _candidates(winner: Winner) -> str:
    some = f"{winner.compared}" if winner.compared == winner.started else f"{winner.compared} of {winner.started}"
    kinds = [f"{some} started trial{'s' if winner.started != 1 else ''}"] if winner.started else []
    return " and ".join([*kinds, *(["new configurations"] if winner.new else [])])


def _name(trial: int | None) -> str:
    return "a new configuration" if trial is None else f"trial {trial}"
