"""Test the share of training that goes to scouts."""

from __future__ import annotations

import pytest

from tuner.schedulers.freeze_thaw.decisions import scouts
from tuner.schedulers.freeze_thaw.state import FreezeThawState

END = 27.0


def after(*scores: float) -> FreezeThawState:
    """Return the state after trials that were trained to the end, one after the other, with these scores."""
    state = FreezeThawState()
    for trial, score in enumerate(scores):
        state.spent += END
        state.results.append((trial, 7, score))
        if state.best is None or score > state.best:
            state.best = score
            state.records.append((state.spent, score))
    return state


def test_the_share_of_training_without_progress() -> None:
    scores = [0.1, 0.2, 1.0, 0.1, 0.2]
    assert scouts.stalled(after(*scores), END) == 0, "nobody asks so early"
    assert scouts.stalled(after(*scores, 1.01), END) == pytest.approx(1 / 6), "a little better is not better"
    assert scouts.stalled(after(*scores, 1.01, 2.0), END) == 0
    assert scouts.stalled(after(*scores, 1.01, 2.0, 0.1, 0.1, 0.1), END) == pytest.approx(3 / 10)


@pytest.mark.parametrize(("misled", "times"), [(False, 1), (True, 5)])
def test_more_are_due_while_early_reports_say_little(misled: bool, times: int) -> None:
    state = after(0.1, 0.2, 0.3)
    state.scouted = 0.1 * times * state.spent - 0.01
    assert scouts.are_due(state, 0.1, END, misled)
    state.scouted += 0.02
    assert not scouts.are_due(state, 0.1, END, misled)
    assert ("5 times as many" in scouts.why("iteration 8", misled)) is misled
