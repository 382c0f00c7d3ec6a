"""ASHA by promotion: the invariants of the paper, recomputed from scratch at every promotion."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.schedulers.driving import Drive, Feed, context
from tuner.domain.decisions import Note, Pause, Resume, Start, Stop
from tuner.domain.events import Reported
from tuner.domain.states import TrialState
from tuner.schedulers import ASHAPromotionScheduler


def rung_of(iteration: int, eta: int) -> int:
    rung = -1
    while eta ** (rung + 1) <= iteration:
        rung += 1
    return rung


@settings(suppress_health_check=list(HealthCheck), phases=(Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 10**6), eta=st.sampled_from([2, 3]), slots=st.integers(1, 5), samples=st.integers(3, 30))
def test_whoever_is_promoted_is_in_the_top_of_its_rung_and_once(seed: int, eta: int, slots: int, samples: int) -> None:
    options = {"type": "asha_promotion", "reduction_factor": eta}
    drive = Drive(options, seed, num_samples=samples, slots=slots, max_t=9, trouble=0.05).run()
    assert drive.core.ended
    entries: dict[int, dict[int, float]] = defaultdict(dict)  # rung -> trial -> value
    at: dict[int, int] = {}  # trial -> its rung
    promoted: set[tuple[int, int]] = set()
    count = 0
    for _, entry in drive.log:
        if isinstance(entry, Reported):
            value, rung = entry.metrics["m"], rung_of(entry.iteration, eta)
            if value == value and rung > at.get(entry.trial, -1) and entry.iteration < 9:
                at[entry.trial] = rung
                entries[rung][entry.trial] = value
            newest = entry.trial
        if isinstance(entry, Resume) or (isinstance(entry, Note) and "continues at" in entry.reason):
            trial = entry.trial if isinstance(entry, Resume) else newest
            rung, values = at[trial], entries[at[trial]]
            better = sum(value > values[trial] for value in values.values())
            assert better < len(values) // eta
            assert (trial, rung) not in promoted
            promoted.add((trial, rung))
            count += 1
        if isinstance(entry, Stop):
            before, ended, _ = entry.reason.partition("; stopped because the search ended: ")
            assert (before.startswith("paused at ") and ended) or "is nan" in entry.reason
    assert count or samples < 2 * eta


def test_the_highest_rung_goes_first_and_the_best_of_it() -> None:
    feed = Feed(ASHAPromotionScheduler(max_t=27, reduction_factor=2), context(num_samples=20))

    def chosen() -> Resume:
        choice = feed.scheduler.choose(feed.trials, False)
        assert isinstance(choice, Resume)
        feed.take(choice)
        return choice

    for value in (0.3, 0.2, 0.1, 0.05):
        (pause,) = feed.report(feed.start(), 1, value)
        assert isinstance(pause, Pause)
        feed.take(pause)
    assert chosen() == Resume(
        trial=0, reason="promoted from iteration 1: m 0.3 is rank 1 of 4 there, and only the best 2 continue"
    )
    (pause,) = feed.report(0, 2, 0.3)
    assert (
        pause.reason
        == "paused at iteration 2: m 0.3 is rank 1 of 1 there, and none continues until there are more to compare"
    )
    feed.take(pause)
    assert chosen().trial == 1
    (note,) = feed.report(1, 2, 0.1)
    assert isinstance(note, Pause)
    feed.take(note)
    assert chosen().trial == 0  # the best of the higher rung, before anybody below
    assert isinstance(feed.scheduler.choose(feed.trials, True), Start)
    assert feed.scheduler.choose(feed.trials, False) is None


def test_whoever_would_be_chosen_at_once_goes_on_without_a_pause() -> None:
    feed = Feed(ASHAPromotionScheduler(max_t=27, reduction_factor=2), context(num_samples=20))
    feed.take(feed.report(feed.start(), 1, 0.5)[0])
    assert feed.report(feed.start(), 1, 0.6) == [
        Note(reason="trial 1 continues at iteration 1: m 0.6 is rank 1 of 2 there, and only the best continues")
    ]
    assert feed.scheduler.choose(feed.trials, False) is None


def test_a_trial_held_by_a_user_is_passed_over_but_keeps_its_rank() -> None:
    feed = Feed(ASHAPromotionScheduler(max_t=27, reduction_factor=2), context(num_samples=20))
    for value in (0.9, 0.5, 0.4, 0.3):
        number = feed.start()
        for decision in feed.report(number, 1, value):
            feed.take(decision)
    assert feed.scheduler.finished(feed.trials, False) is None, "trials wait that may be promoted"
    first = feed.scheduler.choose(feed.trials, False)
    assert isinstance(first, Resume)
    assert first.trial == 0
    feed.trials[0].held = True
    second = feed.scheduler.choose(feed.trials, False)
    assert isinstance(second, Resume)
    assert second.trial == 1
    feed.take(second)
    assert feed.scheduler.choose(feed.trials, False) is None


def test_the_search_ends_when_nobody_may_be_promoted() -> None:
    drive = Drive({"type": "asha_promotion", "reduction_factor": 3}, 3, num_samples=9, trouble=0).run()
    assert drive.core.ended
    finish: Any = next(entry for entry in drive.decisions() if entry.KIND == "finish")
    assert finish.reason == "no paused trial is among the best 1/3 of its rung, and no new trial may be started"
    states = [trial.state for trial in drive.core.trials]
    assert states.count(TrialState.COMPLETED) + states.count(TrialState.STOPPED) == 9
