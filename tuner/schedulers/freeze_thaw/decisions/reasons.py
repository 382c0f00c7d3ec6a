"""Put into words why freeze-thaw pauses, resumes or starts a trial, with the numbers that were compared.

For example:

    paused at iteration 5: trial 12 is more likely to reach a loss below 0.31 (14 % by iteration 12, expected loss
    0.35 ± 0.05) than this trial (2.1 % by iteration 9, expected loss 0.41 ± 0.04); compared: 13 started trials and new
    configurations
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
        more = winner.held is not None
        if winner.thaw:
            ahead = f"has {'a larger' if more else 'the largest'} expected improvement over {self._goal(winner)}"
        else:
            ahead = f"is {'more' if more else 'most'} likely to reach {self._goal(winner)}"
        claim = f"{_name(winner.trial)} {ahead} ({self._claim(winner, winner.trial, winner.forecast)})"
        if winner.held is not None:
            claim += f" than this trial ({self._claim(winner, 0, winner.held)})"
        return f"paused at {at(self.time_attr, t)}: {claim}; {_compared(winner)}"

    def resumed(self, winner: Winner) -> str:
        """Say why `winner` is resumed."""
        return f"resumed: it {self._best(winner)}; {_compared(winner)}"

    def started(self, winner: Winner) -> str:
        """Say why the new configuration `winner` is started."""
        return f"started: the model chose this configuration, which {self._best(winner)}; {_compared(winner)}"

    def _best(self, winner: Winner) -> str:
        if winner.thaw:
            ahead = f"has the largest expected improvement over {self._goal(winner)}"
        else:
            ahead = f"is most likely to reach {self._goal(winner)}"
        said = f"{ahead} ({self._claim(winner, winner.trial, winner.forecast)})"
        if winner.rival is None:
            return said
        trial, forecast = winner.rival
        only_one_is_new = (trial is None) != (winner.trial is None)
        demand = f"; a new configuration must promise {RIVAL} times as much" if winner.thaw and only_one_is_new else ""
        return f"{said}; next best: {_name(trial)} ({self._chance(winner, trial, forecast)}){demand}"

    def _goal(self, winner: Winner) -> str:
        goal = f"{self.objective.score(winner.goal):.5g}"
        if winner.thaw:
            return f"the best {self.objective.metric}, {goal}"
        article = "an" if self.objective.metric[:1].lower() in "aeiou" else "a"
        return f"{article} {self.objective.metric} {'above' if self.objective.mode == 'max' else 'below'} {goal}"

    def _claim(self, winner: Winner, trial: int | None, forecast: Forecast) -> str:
        expected = f"expected {self.objective.metric} {self.objective.score(forecast.mean):.4g} ± {forecast.sd:.2g}"
        return f"{self._chance(winner, trial, forecast)}, {expected}"

    def _chance(self, winner: Winner, trial: int | None, forecast: Forecast) -> str:
        def amount(value: float) -> str:
            if winner.thaw:
                return f"{value:.3g}"
            return f"{100 * value:.3g} %" if value >= 1e-4 else "less than 0.01 %"

        said = f"{amount(forecast.chance)} by {at(self.time_attr, forecast.until)}"
        if forecast.adjusted >= 0.99 * forecast.chance:
            return said
        costs = "the cost of resuming it"
        if trial is None:
            costs = "the cost of a start and its closeness to earlier configurations"
        return f"{said}, counted as {amount(forecast.adjusted)} because of {costs}"


def _compared(winner: Winner) -> str:
    some = f"{winner.compared}" if winner.compared == winner.started else f"{winner.compared} of {winner.started}"
    kinds = [f"{some} started trial{'s' if winner.started != 1 else ''}"] if winner.started else []
    return f"compared: {' and '.join([*kinds, *(['new configurations'] if winner.new else [])])}"


def _name(trial: int | None) -> str:
    return "a new configuration" if trial is None else f"trial {trial}"
