"""Why freeze-thaw paused, resumed or started a trial: who was compared with whom, by what question, with which numbers.

paused at iteration 5: trial 12 has the better chance of loss below 0.31: 0.14 by 12 (expected 0.35 ± 0.05), this one 0.021
by 9 (expected 0.41 ± 0.04); weighed: 13 started trials and new ones
"""

from __future__ import annotations

from tuner.domain.experiment import Objective
from tuner.schedulers.weighing import RIVAL, Forecast, Winner
from tuner.schedulers.wording import shown


def paused(objective: Objective, here: str, winner: Winner) -> str:
    """`winner` is to train instead of the trial that reported `here`."""
    who = _name(winner.trial)
    ahead = "is expected to improve more on" if winner.thaw else "has the better chance of"
    claims = f"{who} {ahead} {_goal(objective, winner)}: {_claim(objective, winner, winner.forecast)}"
    if winner.held is not None:
        claims += f", this one {_claim(objective, winner, winner.held)}"
    return f"paused at {here}: {claims}; {_weighed(winner)}"


def resumed(objective: Objective, winner: Winner) -> str:
    return f"resumed: {_best(objective, winner)}; {_weighed(winner)}"


def started(objective: Objective, winner: Winner) -> str:
    return f"new: {_best(objective, winner)}; {_weighed(winner)}"


def _best(objective: Objective, winner: Winner) -> str:
    what = "the largest expected improvement on" if winner.thaw else "the best chance of"
    first = f"{what} {_goal(objective, winner)}: {_claim(objective, winner, winner.forecast)}"
    if winner.rival is None:
        return first
    trial, forecast = winner.rival
    against_new = winner.thaw and (trial is None) != (winner.trial is None)
    asked = f" ({RIVAL} times as much is asked of new ones)" if against_new else ""
    return f"{first}; next {_name(trial)}: {_chance(winner, forecast)}{asked}"


def _goal(objective: Objective, winner: Winner) -> str:
    goal = f"{objective.score(winner.goal):.5g}"
    if winner.thaw:
        return f"the best {objective.metric}, {goal}"
    return f"{objective.metric} {'above' if objective.mode == 'max' else 'below'} {goal}"


def _claim(objective: Objective, winner: Winner, forecast: Forecast) -> str:
    return f"{_chance(winner, forecast)} (expected {objective.score(forecast.mean):.4g} ± {forecast.sd:.2g})"


def _chance(winner: Winner, forecast: Forecast) -> str:
    less = forecast.counted < 0.99 * forecast.chance
    cost = f", weighed as {forecast.counted:.3g} for its costs," if less else ""
    return f"{forecast.chance:.3g}{cost} {'at' if winner.thaw else 'by'} {shown(forecast.until)}"


def _weighed(winner: Winner) -> str:
    count = f"{winner.weighed}" if winner.weighed == winner.of else f"{winner.weighed} of {winner.of}"
    kinds = [f"{count} started trial{'s' if winner.of != 1 else ''}"] if winner.of else []
    return f"weighed: {' and '.join([*kinds, *(['new ones'] if winner.new else [])])}"


def _name(trial: int | None) -> str:
    return "a new trial" if trial is None else f"trial {trial}"
