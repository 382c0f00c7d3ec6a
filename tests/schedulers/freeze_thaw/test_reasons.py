"""Reasons of freeze-thaw: the question, who was compared, with which numbers."""

from __future__ import annotations

from dataclasses import replace

from tuner.domain.experiment import Objective
from tuner.schedulers.freeze_thaw.acquisition import Forecast, Winner
from tuner.schedulers.freeze_thaw.reasons import paused, resumed, started

LOSS, ACCURACY = Objective("loss", "min"), Objective("accuracy", "max")
AHEAD = Forecast(until=12, mean=-0.35, sd=0.05, chance=0.14, counted=0.14)
BEHIND = Forecast(until=9, mean=-0.41, sd=0.04, chance=0.021, counted=0.021)
COSTLY = replace(AHEAD, counted=0.08)
WON = Winner(12, None, AHEAD, BEHIND, goal=-0.31, thaw=False, rival=(3, BEHIND), weighed=13, of=13, new=True)


def test_a_pause_says_by_which_question_the_other_one_is_ahead() -> None:
    assert paused(LOSS, "iteration 5", WON) == (
        "paused at iteration 5: trial 12 has the better chance of loss below 0.31: 0.14 by 12 (expected 0.35 ± 0.05), "
        "this one 0.021 by 9 (expected 0.41 ± 0.04); weighed: 13 started trials and new ones"
    )
    assert "a new trial has the better chance of accuracy above -0.31" in paused(
        ACCURACY, "iteration 5", replace(WON, trial=None)
    )
    assert "; weighed: 150 of 700 started trials" in paused(LOSS, "t 5", replace(WON, weighed=150, of=700))


def test_when_thawing_the_question_is_the_improvement() -> None:
    thaw = replace(WON, thaw=True)
    assert paused(LOSS, "iteration 5", thaw) == (
        "paused at iteration 5: trial 12 is expected to improve more on the best loss, 0.31: 0.14 at 12 "
        "(expected 0.35 ± 0.05), this one 0.021 at 9 (expected 0.41 ± 0.04); weighed: 13 started trials and new ones"
    )
    assert resumed(LOSS, replace(thaw, rival=(None, replace(AHEAD, chance=0.3, counted=0.3)))) == (
        "resumed: the largest expected improvement on the best loss, 0.31: 0.14 at 12 (expected 0.35 ± 0.05); "
        "next a new trial: 0.3 at 12 (10 times as much is asked of new ones); weighed: 13 started trials and new ones"
    )


def test_who_comes_next_is_named_and_what_a_start_costs() -> None:
    assert resumed(LOSS, replace(WON, forecast=COSTLY, new=False, weighed=1, of=1, rival=None)) == (
        "resumed: the best chance of loss below 0.31: 0.14, weighed as 0.08 for its costs, by 12 (expected 0.35 ± 0.05); "
        "weighed: 1 started trial"
    )
    assert started(LOSS, replace(WON, trial=None)) == (
        "new: the best chance of loss below 0.31: 0.14 by 12 (expected 0.35 ± 0.05); next trial 3: 0.021 by 9; "
        "weighed: 13 started trials and new ones"
    )
    assert started(LOSS, replace(WON, trial=None, rival=None, of=0)).endswith("; weighed: new ones")
