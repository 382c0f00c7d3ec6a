"""Test the population of trials."""

from __future__ import annotations

from tuner.domain.experiment import Objective
from tuner.domain.segments import CheckpointInfo
from tuner.domain.states import TrialState
from tuner.domain.trial import KeptCheckpoint, Population, Trial


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


def test_the_best_checkpoint_is_one_whose_upload_is_complete() -> None:
    trial, loss = Trial(0, {}), Objective("loss", "min")

    def saved(step: int, value: float | None, ready: bool) -> None:
        info = CheckpointInfo(id=f"ckp_{step}", uri="memory:", step=step, ready=ready)
        trial.checkpoints[info.id] = KeptCheckpoint(info, value, 1)

    saved(1, 0.1, ready=False)
    assert trial.best_checkpoint(loss) is None
    for step, value, ready, best in ((2, None, True, 2), (3, None, False, 2), (4, 0.5, True, 4), (5, 0.6, True, 4)):
        saved(step, value, ready)
        found = trial.best_checkpoint(loss)
        assert found is not None
        assert found.step == best
