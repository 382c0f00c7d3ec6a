"""Reasons of freeze-thaw: the question, what was compared, with which numbers."""

from __future__ import annotations

from dataclasses import replace

from tuner.domain.experiment import Objective
from tuner.schedulers.freeze_thaw.decisions.acquisition import Forecast, Winner
from tuner.schedulers.freeze_thaw.decisions.reasons import Reasons

LOSS = Reasons(Objective("loss", "min"), "training_iteration")
ACCURACY = Reasons(Objective("accuracy", "max"), "time_total_s")
AHEAD = Forecast(until=12, mean=-0.35, sd=0.05, chance=0.14, adjusted=0.14)
BEHIND = Forecast(until=9, mean=-0.41, sd=0.04, chance=0.021, adjusted=0.021)
COSTLY = replace(AHEAD, adjusted=0.08)
WON = Winner(12, None, AHEAD, BEHIND, goal=-0.31, thaw=False, rival=(3, BEHIND), compared=13, started=13, new=True)


def test_a_pause_says_by_which_question_the_other_one_is_ahead() -> None:
    assert LOSS.paused(5, WON) == (
        "paused at iteration 5: trial 12 is more likely to reach a loss below 0.31; 14 % by iteration 12 (expected loss "
        "0.35 ± 0.05), against 2.1 % by iteration 9 (expected loss 0.41 ± 0.04); "
        "compared: 13 started trials and new configurations"
    )
    assert ACCURACY.paused(5, replace(WON, trial=None)).startswith(
        "paused at time_total_s 5: a new configuration is more likely to reach an accuracy above -0.31; 14 % by time_total_s 12"
    )
    assert LOSS.paused(5, replace(WON, held=None)).startswith(
        "paused at iteration 5: trial 12 is most likely to reach a loss below 0.31; 14 % by iteration 12 (expected loss "
        "0.35 ± 0.05); compared:"
    )
    assert "; compared: 150 of 700 started trials" in LOSS.paused(5, replace(WON, compared=150, started=700))


def test_a_goal_that_nobody_could_reach_is_not_shown() -> None:
    """Goals are drawn at random, so an accuracy above 1.0496 was one of them."""
    high = replace(WON, goal=1.0496, forecast=replace(AHEAD, mean=0.9127, sd=0.41))
    assert ACCURACY.paused(2, high).startswith(
        "paused at time_total_s 2: trial 12 is more likely to improve accuracy greatly; 14 % by time_total_s 12 (expected "
        "accuracy 0.913 ± 0.4), against"
    )
    assert "improve loss greatly" in LOSS.resumed(replace(WON, goal=0.02))
    assert "reach an accuracy above 1.05" in ACCURACY.resumed(replace(high, forecast=replace(AHEAD, mean=7.0)))


def test_numbers_are_rounded_and_never_powers_of_ten() -> None:
    large = Forecast(until=12, mean=1834.2, sd=97.0, chance=0.997, adjusted=0.997)
    said = ACCURACY.resumed(replace(WON, forecast=large, rival=None, goal=12345.6))
    assert "above 12346; 100 % by time_total_s 12 (expected accuracy 1834 ± 97)" in said


def test_in_a_thaw_decision_the_question_is_the_improvement() -> None:
    thaw = replace(WON, thaw=True)
    assert LOSS.paused(5, thaw) == (
        "paused at iteration 5: trial 12 is expected to improve the best loss more; 0.14 by iteration 12 (expected loss 0.35 ± "
        "0.05), against 0.021 by iteration 9 (expected loss 0.41 ± 0.04); "
        "compared: 13 started trials and new configurations"
    )
    assert LOSS.resumed(replace(thaw, rival=(None, replace(AHEAD, chance=0.3, adjusted=0.3)))) == (
        "resumed: it is expected to improve the best loss most; 0.14 by iteration 12 (expected loss 0.35 ± 0.05); next best: a "
        "new configuration, 0.3 by iteration 12; a new configuration must promise 10 times as much; "
        "compared: 13 started trials and new configurations"
    )


def test_the_next_best_is_named_and_so_are_the_costs() -> None:
    alone = replace(WON, forecast=COSTLY, new=False, compared=1, started=1, rival=None)
    assert LOSS.resumed(alone) == (
        "resumed: it is most likely to reach a loss below 0.31; 14 % by iteration 12, counted as 8 % because resuming it costs "
        "time (expected loss 0.35 ± 0.05); compared: 1 started trial"
    )
    assert LOSS.started(replace(WON, trial=None)) == (
        "started: the model chose this configuration, which is most likely to reach a loss below 0.31; 14 % by iteration 12 "
        "(expected loss 0.35 ± 0.05); next best: trial 3, 2.1 % by iteration 9; "
        "compared: 13 started trials and new configurations"
    )
    assert LOSS.started(replace(WON, trial=None, rival=None, started=0)).endswith("; compared: new configurations")


def test_of_a_new_configuration_the_closeness_to_earlier_ones_is_a_cost_too() -> None:
    assert "14 % by iteration 12, counted as 8 % because a start costs time and similar configurations were tried" in (
        LOSS.started(replace(WON, trial=None, forecast=COSTLY))
    )


def test_tiny_chances_have_no_digits() -> None:
    tiny = replace(BEHIND, chance=1.56e-16, adjusted=1.56e-16)
    assert "against less than 0.01 % by iteration 9 (" in LOSS.paused(5, replace(WON, held=tiny))
