"""The tables of legal changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.states import (
    EXPERIMENT_CHANGES,
    SEGMENT_CHANGES,
    TRIAL_CHANGES,
    ExperimentState,
    SegmentState,
    TrialState,
    change_experiment,
    change_segment,
    change_trial,
)
from tuner.domain.trial import Segment
from tuner.errors import IllegalTransition

TABLES: list[tuple[Any, Mapping[Any, Any], Callable[[Any, Any], Any]]] = [
    (ExperimentState, EXPERIMENT_CHANGES, change_experiment),
    (TrialState, TRIAL_CHANGES, change_trial),
    (SegmentState, SEGMENT_CHANGES, change_segment),
]


@pytest.mark.parametrize(("states", "changes", "change"), TABLES)
def test_every_change_is_either_in_the_table_or_refused(
    states: Any, changes: Mapping[Any, Any], change: Callable[[Any, Any], Any]
) -> None:
    assert set(changes) == set(states)
    for old in states:
        # A user can continue an experiment that has ended. Nothing else leaves a final state.
        continued = {ExperimentState.RUNNING} if states is ExperimentState else set()
        assert changes[old] == continued if old.ended else changes[old]
        for new in states:
            if new in changes[old]:
                assert change(old, new) is new
            else:
                with pytest.raises(IllegalTransition, match=f"is {old} cannot become {new}"):
                    change(old, new)


@given(st.lists(st.sampled_from(SegmentState)))
def test_a_segment_takes_only_legal_steps_and_ends_once(wanted: list[SegmentState]) -> None:
    segment = Segment(1, "start", {}, 0, None)
    way = [segment.state]
    for state in wanted:
        try:
            segment.move(state)
        except IllegalTransition:
            assert segment.state is way[-1], "a change that is refused changes nothing"
        else:
            way.append(state)
        assert segment.open is (segment.state in (SegmentState.LAUNCHING, SegmentState.RUNNING, SegmentState.LEAVING))
        assert segment.outcome == (str(segment.state) if segment.state.ended else None)
    assert sum(state.ended for state in way) <= 1
    assert SegmentState.DROPPED not in way or way == [SegmentState.PLANNED, SegmentState.DROPPED]
    if SegmentState.RETURNED in way:
        assert {SegmentState.RUNNING, SegmentState.LEAVING} & set(way), "only a segment that was entered can return"


def test_a_segment_that_is_leaving_is_neither_told_again_nor_runs_again() -> None:
    assert SEGMENT_CHANGES[SegmentState.LEAVING] == {
        SegmentState.RETURNED,
        SegmentState.LEFT,
        SegmentState.FAILED,
        SegmentState.LOST,
    }
