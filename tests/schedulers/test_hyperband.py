"""Synchronous HyperBand: the table of the paper, Ray's choice of survivors, and what happens when somebody is missing."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.schedulers.driving import Drive, Feed, context
from tests.schedulers.oracles import ray_schedulers
from tuner.domain.decisions import Decision, Pause, Resume, Start, Stop
from tuner.domain.events import Reported
from tuner.domain.states import TrialState
from tuner.errors import SpecError
from tuner.schedulers import HyperBandScheduler
from tuner.schedulers.hyperband import shapes
from tuner.schedulers.shared.rungs import reduction


def test_brackets_are_those_of_the_paper() -> None:
    band = shapes(81, 3)
    assert [(shape.trials, shape.levels[0]) for shape in band] == [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]
    assert [shape.levels for shape in band] == [(1, 3, 9, 27, 81), (3, 9, 27, 81), (9, 27, 81), (27, 81), (81,)]
    rounds = [[shape.trials, *(shape.left(shape.trials, r, 3) for r in range(1, len(shape.levels)))] for shape in band]
    assert rounds == [[81, 27, 9, 3, 1], [34, 11, 3, 1], [15, 5, 1], [8, 2], [5]]


@pytest.mark.parametrize(
    ("R", "eta", "brackets"), [(243, 3, 6), (1000, 10, 4), (27, 3, 4), (16, 2, 5), (5, 4, 2), (1, 3, 1)]
)
def test_the_number_of_brackets_is_exact(R: int, eta: int, brackets: int) -> None:
    band = shapes(R, eta)
    assert len(band) == brackets
    assert all(shape.levels[-1] == R for shape in band)
    assert all(isinstance(level, int) and level >= 1 for shape in band for level in shape.levels)
    theirs = ray_schedulers.HyperBandScheduler(max_t=81, reduction_factor=3)
    assert {(theirs._get_n0(s), theirs._get_r0(s)) for s in range(5)} == {
        (x.trials, x.levels[0]) for x in shapes(81, 3)
    }


def full_band(feed: Feed, value: Any) -> Counter[tuple[int, int]]:
    """Run trials to their levels, one after the other. Return how many reached each (bracket, level)."""
    reached: Counter[tuple[int, int]] = Counter()
    scheduler: Any = feed.scheduler
    queue: list[Decision] = []
    while True:
        while queue:
            queue.extend(feed.take(queue.pop(0)))
        choice = scheduler.choose(feed.trials, len(feed.trials) < (feed.context.num_samples or 0))
        if choice is None:
            return reached
        if isinstance(choice, Start):
            number = feed.start()
        else:
            number = choice.trial
            feed.take(choice)
        while feed.trials[number].state is TrialState.RUNNING:
            t = scheduler.milestone(feed.trials[number], feed.trials)
            reached[scheduler.state.home[number], t] += 1
            queue = feed.report(number, t, value(number, t))
            mine = [d for d in queue if getattr(d, "trial", None) == number]
            queue = [d for d in queue if d not in mine]
            for decision in mine:
                queue.extend(feed.take(decision))


def test_a_whole_band_spends_what_the_paper_says() -> None:
    rng = random.Random(3)
    feed = Feed(HyperBandScheduler(), context(max_t=81, num_samples=143))
    reached = full_band(feed, lambda number, t: rng.random())
    assert reached == {
        (0, 1): 81, (0, 3): 27, (0, 9): 9, (0, 27): 3, (0, 81): 1,
        (1, 3): 34, (1, 9): 11, (1, 27): 3, (1, 81): 1,
        (2, 9): 15, (2, 27): 5, (2, 81): 1,
        (3, 27): 8, (3, 81): 2,
        (4, 81): 5,
    }  # fmt: skip


def test_rounds_at_equal_levels_are_one_round() -> None:
    (first, *_) = shapes(9, reduction(1.5))
    assert (first.trials, first.levels) == (8, (1, 1, 2, 4, 6, 9))
    feed = Feed(HyperBandScheduler(max_t=9, reduction_factor=1.5), context(num_samples=8))
    reached = full_band(feed, lambda number, t: float(number))
    assert reached == {(0, 1): 8, (0, 2): 3, (0, 4): 2, (0, 6): 1, (0, 9): 1}


def test_survivors_are_rays() -> None:
    """The bracket (81, 1), whose sizes divide, so that rounding up and down are the same."""
    rng = random.Random(5)
    quality = {number: [rng.random() for _ in range(5)] for number in range(81)}
    theirs = ray_schedulers.HyperBandScheduler(max_t=81, reduction_factor=3)
    theirs.set_search_properties("m", "max")
    bracket = theirs._create_bracket(4)
    live = list(range(81))
    for number in live:
        bracket.add_trial(number)
    rays: list[set[int]] = []
    for round_ in range(4):
        for number in live:
            bracket.update_trial_stats(number, {"training_iteration": bracket._cumul_r, "m": quality[number][round_]})
        good, bad = bracket.successive_halving("m", 1.0)
        assert bracket._cumul_r == [3, 9, 27, 81][round_]
        for number in bad:
            bracket._live_trials.pop(number)
        live = list(good)
        rays.append(set(good))
    feed = Feed(HyperBandScheduler(), context(max_t=81, num_samples=81))
    ours: dict[float, set[int]] = {}

    def value(number: int, t: float) -> float:
        ours.setdefault(t, set()).add(number)
        return quality[number][[1, 3, 9, 27, 81].index(int(t))]

    full_band(feed, value)
    assert [ours[t] for t in (3, 9, 27, 81)] == rays


def test_a_bracket_waits_for_everybody_and_says_so() -> None:
    scheduler = HyperBandScheduler(max_t=9, reduction_factor=3)
    feed = Feed(scheduler, context(num_samples=40))
    for _ in range(9):
        feed.start()
    for number in range(8):
        (pause,) = feed.report(number, 1, number / 10)
        assert pause == Pause(
            trial=number,
            reason="paused at iteration 1: the best continue once "
            + ("1 more trial of its bracket has" if number == 7 else f"{8 - number} more trials of its bracket have")
            + " trained this far and can be compared",
        )
        feed.take(pause)
        assert isinstance(scheduler.choose(feed.trials, True), Start)
    stops = feed.report(8, 1, 0.65)
    assert [stop.trial for stop in stops if isinstance(stop, Stop)] == [5, 4, 3, 2, 1, 0]
    assert (
        stops[0].reason
        == "stopped at iteration 1: m 0.5 is rank 4 of 9 there, and only the best 3 continue (at least 0.6)"
    )
    assert feed.trials[8].state is TrialState.RUNNING  # it is the second best, and simply goes on
    for stop in stops:
        feed.take(stop)
    first = scheduler.choose(feed.trials, True)
    assert first == Resume(
        trial=7, reason="resumed from iteration 1: m 0.7 is rank 1 of 9 there, and only the best 3 continue"
    )
    feed.take(first)
    second = scheduler.choose(feed.trials, True)
    assert isinstance(second, Resume)
    assert second.trial == 6


def test_a_failed_trial_leaves_its_place_to_the_next_best() -> None:
    scheduler = HyperBandScheduler(max_t=9, reduction_factor=3)
    feed = Feed(scheduler, context(num_samples=9))
    for _ in range(9):
        feed.start()
    for number in range(8):
        for decision in feed.report(number, 1, number / 10):
            feed.take(decision)
    stops = feed.end(8)  # the ninth fails, and closes the round
    assert {stop.trial for stop in stops if isinstance(stop, Stop)} == {0, 1, 2, 3, 4}


def test_an_unfilled_bracket_goes_on_with_what_it_has() -> None:
    drive = Drive({"type": "hyperband", "reduction_factor": 3}, 2, num_samples=4, max_t=27, trouble=0).run()
    assert drive.core.ended
    reasons = [d.reason for d in drive.decisions() if isinstance(d, Resume)]
    assert any("planned for 27 trials, but no further trial may be started" in reason for reason in reasons)
    assert [trial.state for trial in drive.core.trials].count(TrialState.COMPLETED) == 1
    assert max(event.iteration for _, event in drive.log if isinstance(event, Reported)) == 27


def test_bad_options() -> None:
    with pytest.raises(SpecError, match="max_t: expected at least 1, got 0"):
        HyperBandScheduler(max_t=0)
    with pytest.raises(SpecError, match="reduction_factor"):
        HyperBandScheduler(reduction_factor=1.0)
