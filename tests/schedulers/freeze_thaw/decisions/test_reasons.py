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


def test_a_pause_says_what_is_predicted_of_both() -> None:
    assert LOSS.paused(5, WON) == (
        "paused at iteration 5 in favor of trial 12, which has a 14 % chance of a loss below 0.31 by iteration 12 (predicted "
        "loss 0.35 ± 0.05); this trial's chance is 2.1 % by iteration 9 (predicted loss 0.41 ± 0.04); "
        "13 started trials and new configurations were compared"
    )
    assert ACCURACY.paused(5, replace(WON, trial=None)).startswith(
        "paused at time_total_s 5 in favor of a new configuration, which has a 14 % chance of an accuracy above -0.31 by "
        "time_total_s 12"
    )
    assert LOSS.paused(5, replace(WON, held=None)) == (
        "paused at iteration 5 in favor of trial 12, which has a 14 % chance of a loss below 0.31 by iteration 12 (predicted "
        "loss 0.35 ± 0.05); 13 started trials and new configurations were compared"
    )
    assert "; 150 of 700 started trials" in LOSS.paused(5, replace(WON, compared=150, started=700))


def test_a_goal_that_nobody_could_reach_is_not_shown() -> None:
    """Goals are drawn at random, so an accuracy above 1.0496 was one of them."""
    high = replace(WON, goal=1.0496, forecast=replace(AHEAD, mean=0.9127, sd=0.41))
    assert ACCURACY.paused(2, high).startswith(
        "paused at time_total_s 2 in favor of trial 12, which has a 14 % chance of an accuracy far above the best one by "
        "time_total_s 12 (predicted accuracy 0.913 ± 0.4); this trial's"
    )
    assert "chance of a loss far below the best one" in LOSS.resumed(replace(WON, goal=0.02))
    assert "chance of an accuracy above 1.05" in ACCURACY.resumed(replace(high, forecast=replace(AHEAD, mean=7.0)))


def test_numbers_are_rounded_and_never_powers_of_ten() -> None:
    large = Forecast(until=12, mean=1834.2, sd=97.0, chance=0.997, adjusted=0.997)
    said = ACCURACY.resumed(replace(WON, forecast=large, rival=None, goal=12345.6))
    assert "has a 100 % chance of an accuracy above 12346 by time_total_s 12 (predicted accuracy 1834 ± 97)" in said


def test_in_a_thaw_decision_the_improvement_of_the_best_value_is_predicted() -> None:
    thaw = replace(WON, thaw=True)
    assert LOSS.paused(5, thaw) == (
        "paused at iteration 5 in favor of trial 12, which has an expected improvement of 0.14 over the best loss, 0.31, by "
        "iteration 12 (predicted loss 0.35 ± 0.05); this trial's expected improvement is 0.021 by iteration 9 (predicted loss "
        "0.41 ± 0.04); 13 started trials and new configurations were compared"
    )
    assert LOSS.resumed(replace(thaw, rival=(None, replace(AHEAD, chance=0.3, adjusted=0.3)))) == (
        "resumed: it has an expected improvement of 0.14 over the best loss, 0.31, by iteration 12 (predicted loss 0.35 ± "
        "0.05); it is the most promising of 13 started trials and new configurations, before a new configuration with 0.3 by "
        "iteration 12; a new configuration is preferred only if its expected improvement is 10 times as large"
    )


def test_the_second_best_is_named_and_so_are_the_costs() -> None:
    alone = replace(WON, forecast=COSTLY, new=False, compared=1, started=1, rival=None)
    assert LOSS.resumed(alone) == (
        "resumed: it has a 14 % chance of a loss below 0.31 by iteration 12 (predicted loss 0.35 ± 0.05), counted as 8 % "
        "because resuming it takes time; it is the most promising of 1 started trial"
    )
    assert LOSS.started(replace(WON, trial=None)) == (
        "started with a configuration that the model chose: it has a 14 % chance of a loss below 0.31 by iteration 12 "
        "(predicted loss 0.35 ± 0.05); it is the most promising of 13 started trials and new configurations, before trial 3 "
        "with 2.1 % by iteration 9"
    )
    assert LOSS.started(replace(WON, trial=None, rival=None, started=0)).endswith("promising of new configurations")


def test_of_a_new_configuration_the_closeness_to_earlier_ones_is_a_cost_too() -> None:
    assert ", counted as 8 % because a start takes time and similar configurations were tried" in (
        LOSS.started(replace(WON, trial=None, forecast=COSTLY))
    )


def test_tiny_chances_have_no_digits() -> None:
    tiny = replace(BEHIND, chance=1.56e-16, adjusted=1.56e-16)
    assert "this trial's chance is less than 0.01 % by iteration 9 (" in LOSS.paused(5, replace(WON, held=tiny))
    assert "which has a less than 0.01 % chance of a loss" in LOSS.paused(5, replace(WON, forecast=tiny))
