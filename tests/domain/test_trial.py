"""Test the population of trials."""

from __future__ import annotations

from tuner.domain.states import TrialState
from tuner.domain.trial import Population, Trial


def test_the_trials_of_the_search_keep_their_order_when_the_first_repeat_is_added() -> None:
    population = Population()
    for number in range(3):
        population.add(Trial(number, {}))
    for number in (2, 0, 1):
        population.move(number, TrialState.RUNNING)
    population.add(Trial(3, {}, repeat_of=2))
    assert population.searched.in_state(TrialState.RUNNING) == population.in_state(TrialState.RUNNING) == [2, 0, 1]
    population.move(0, TrialState.PAUSED)
    assert population.searched.in_state(TrialState.RUNNING) == [2, 1]
    assert len(population.searched) == 3
