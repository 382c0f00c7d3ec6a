"""Median stopping against Ray's, decision for decision on the same streams."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedulers.driving import Drive, Feed, context
from tests.schedulers.oracles import OptunaDriven, RayDriven, optuna, ray_schedulers
from tuner.domain.decisions import Pause, Resume, Stop
from tuner.domain.states import TrialState
from tuner.errors import SpecError
from tuner.schedulers import MedianStoppingRule


@given(
    seed=st.integers(0, 10**6),
    grace=st.sampled_from([0, 1, 3]),
    needed=st.sampled_from([1, 3, 5]),
    mode=st.sampled_from(["min", "max"]),
    stride=st.sampled_from([1, 3]),
)
def test_is_rays_decision_for_decision(seed: int, grace: int, needed: int, mode: str, stride: int) -> None:
    """Compare also trials that report sparsely. Values are eighths, so that sums are exact in any order."""
    rng = random.Random(seed)
    theirs = RayDriven(
        ray_schedulers.MedianStoppingRule(
            time_attr="training_iteration", grace_period=grace, min_samples_required=needed
        ),
        mode,
    )
    ours = Feed(MedianStoppingRule(grace_period=grace, min_samples_required=needed), context(mode))
    at: dict[int, int] = {}
    for _ in range(150):
        running = [number for number, t in at.items() if t < 16][:5]
        if len(running) < 5 or rng.random() < 0.02:
            at[ours.start()] = 0
            continue
        number = rng.choice(running)
        at[number] += rng.randint(1, stride)
        value = rng.randint(0, 8) / 8
        decided = ours.report(number, at[number], value)
        assert [type(decision) for decision in decided] == (
            [Stop] if theirs.report(number, at[number], value) == "STOP" else []
        )
        if decided:
            ours.take(decided[0])
            at[number] = 99


def test_is_optunas_median_pruner_where_that_compares_the_same() -> None:
    """Compare with Optuna's median pruner on curves for which both rules are the same.

    Optuna compares with the values that complete trials had at the same step, we with running means of all trials so far. For
    constant curves these are equal if every trial runs to its end.
    """
    rng = random.Random(1)
    theirs = OptunaDriven(optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=0))
    ours = Feed(MedianStoppingRule(grace_period=1, min_samples_required=3), context())
    decisions: list[bool] = []
    for _ in range(40):
        number, level = ours.start(), rng.random()
        for t in range(1, 5):
            decisions.append(bool(ours.report(number, t, level)))
            assert decisions[-1] == theirs.report(number, t, level)
        theirs.study.tell(theirs.trials[number], level)
    assert 40 < sum(decisions) < 120


def test_says_why_with_numbers() -> None:
    feed = Feed(MedianStoppingRule(), context("min"))
    for value in (0.25, 0.5, 0.75):
        feed.report(feed.start(), 1, value)
    assert feed.report(feed.start(), 1, 0.625) == [
        Stop(
            trial=3,
            reason="stopped at iteration 1: its best value 0.625 is above 0.5, the median of the running means of 3 other trials",
        )
    ]


def test_soft_stops_run_on_when_nothing_new_is_left() -> None:
    options = {"type": "median", "min_samples_required": 2, "hard_stop": False}
    drive = Drive(options, 4, num_samples=10, slots=2, trouble=0).run()
    assert drive.core.ended
    assert {trial.state for trial in drive.core.trials} == {TrialState.COMPLETED}
    set_aside = [d.trial for d in drive.decisions() if isinstance(d, Pause)]
    assert set_aside
    assert len(set_aside) == len(set(set_aside)), "a trial was set aside twice"
    resumed = [d for d in drive.decisions() if isinstance(d, Resume)]
    assert sorted(d.trial for d in resumed) == sorted(set_aside)


def test_members_yield_while_there_is_nobody_to_compare_with() -> None:
    options = {"type": "median", "min_samples_required": 4, "min_time_slice": 2}
    drive = Drive(options, 4, num_samples=8, slots=2, trouble=0).run()
    reasons = [d.reason for d in drive.decisions() if isinstance(d, Pause)]
    assert reasons
    assert all("other trials are waiting" in reason for reason in reasons)
    assert drive.core.ended


def test_with_a_time_slice_of_0_members_take_turns_at_every_report_while_one_is_paused() -> None:
    feed = Feed(MedianStoppingRule(min_samples_required=4, min_time_slice=0), context(num_samples=3))
    for _ in range(3):
        feed.start()
    assert feed.report(0, 1, 0.5) == []
    feed.take(Pause(trial=1, reason="by a user"))
    (pause,) = feed.report(0, 2, 0.5)
    assert isinstance(pause, Pause)


def test_bad_options() -> None:
    with pytest.raises(SpecError, match="min_samples_required: expected at least 1, got 0"):
        MedianStoppingRule(min_samples_required=0)
    with pytest.raises(SpecError, match="hard_stop: expected true or false"):
        MedianStoppingRule(hard_stop="yes")  # type: ignore[arg-type]
