"""ASHA, stopping form: it decides as Optuna's pruner does, differs from Ray's only as documented, and works by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedulers.driving import Drive, Feed, context
from tests.schedulers.oracles import OptunaDriven, RayDriven, optuna, ray_schedulers
from tuner.domain.decisions import Complete, Stop
from tuner.domain.events import Reported
from tuner.domain.states import TrialState
from tuner.errors import SpecError
from tuner.schedulers import ASHAScheduler
from tuner.search.constraints import read


def stream(seed: int, trials: int, ends: set[int], max_t: int, digits: int = 2) -> Iterator[tuple[int, int, float]]:
    """Yield (trial, iteration, value) in a random order of trials. Trials in `ends` report no more."""
    rng = random.Random(seed)
    at = dict.fromkeys(range(trials), 0)
    while alive := [n for n, t in at.items() if n not in ends and t < max_t]:
        number = rng.choice(alive[: rng.randint(1, 6)])
        at[number] += 1
        yield number, at[number], round(rng.random(), digits)


@given(
    seed=st.integers(0, 10**6),
    eta=st.sampled_from([2, 3, 4]),
    grace=st.sampled_from([1, 2]),
    mode=st.sampled_from(["min", "max"]),
    digits=st.sampled_from([1, 6]),
)
def test_is_optunas_successive_halving_decision_for_decision(
    seed: int, eta: int, grace: int, mode: str, digits: int
) -> None:
    theirs = OptunaDriven(
        optuna.pruners.SuccessiveHalvingPruner(min_resource=grace, reduction_factor=eta, min_early_stopping_rate=0),
        mode,
    )
    ours = Feed(ASHAScheduler(grace_period=grace, reduction_factor=eta), context(mode))
    ends: set[int] = set()
    stopped = 0
    for number, t, value in stream(seed, 30, ends, 27, digits):
        while len(ours.trials) <= number:
            ours.start()
        decided = ours.report(number, t, value)
        assert bool(decided) == theirs.report(number, t, value)
        if decided:
            stopped += 1
            ends.add(number)
            theirs.end(number)
            ours.take(decided[0])
    assert stopped > 5


@pytest.mark.parametrize("eta", [2, 3, 4])
def test_is_stricter_than_rays_only_at_the_cut_itself(eta: int) -> None:
    """Ray compares with a percentile of the others, interpolated; we rank among all, the trial itself included."""
    differ = decisions = 0
    for seed in range(30):
        theirs = RayDriven(ray_schedulers.AsyncHyperBandScheduler(max_t=100, grace_period=1, reduction_factor=eta))
        scheduler = ASHAScheduler(max_t=100, grace_period=1, reduction_factor=eta)
        ours = Feed(scheduler, context())
        ends: set[int] = set()
        for number, t, value in stream(seed, 40, ends, 40, digits=6):
            while len(ours.trials) <= number:
                ours.start()
            decided = ours.report(number, t, value)
            ray_stops = theirs.report(number, t, value) == "STOP"
            assert decided or not ray_stops, "Ray stopped a trial that we let go on"
            newest = scheduler.state.newest
            if newest is not None:
                decisions += 1
                rung = scheduler.state.rungs[0][newest[1]]
                rank, kept = len(rung) - rung.bisect_right(value) + 1, max(1, len(rung) // eta)
                if bool(decided) != ray_stops:
                    differ += 1
                    assert kept < rank <= kept + 2
            if decided:
                ends.add(number)
                ours.take(decided[0])
    assert decisions > 1000
    assert 0.02 < differ / decisions < 0.25


def test_says_why_with_numbers() -> None:
    feed = Feed(ASHAScheduler(max_t=27, grace_period=9, reduction_factor=3), context())
    values = [0.8, 0.74, 0.9, 0.6, 0.5, 0.77, 0.4, 0.72, 0.71]
    for value in values:
        number = feed.start()
        decided = feed.report(number, 9, value)
    assert decided == [
        Stop(
            trial=8,
            reason="stopped at iteration 9: m 0.71 is rank 6 of 9 there, and only the best 3 continue (at least 0.77)",
        ),
    ]


def test_minimising_turns_the_words_around() -> None:
    feed = Feed(ASHAScheduler(max_t=27, reduction_factor=2), context("min"))
    feed.report(feed.start(), 1, 0.5)
    (decision,) = feed.report(feed.start(), 1, 0.6)
    assert (
        decision.reason
        == "stopped at iteration 1: m 0.6 is rank 2 of 2 there, and only the best continues (at most 0.5)"
    )


def test_ties_with_the_last_that_goes_on_go_on() -> None:
    feed = Feed(ASHAScheduler(max_t=27, reduction_factor=3), context())
    assert [bool(feed.report(feed.start(), 1, 0.5)) for _ in range(9)] == [False] * 9
    assert feed.report(feed.start(), 1, 0.49)


def test_a_report_that_jumps_over_rungs_counts_at_the_highest_one_passed() -> None:
    scheduler = ASHAScheduler(max_t=81, reduction_factor=3)
    feed = Feed(scheduler, context())
    number = feed.start()
    feed.report(number, 10, 0.5)
    assert [len(rung) for rung in scheduler.state.rungs[0]] == [0, 0, 1]
    assert scheduler.milestone(feed.trials[number], feed.trials) == 27


def test_nothing_is_decided_between_milestones() -> None:
    scheduler = ASHAScheduler(max_t=27, reduction_factor=3)
    feed = Feed(scheduler, context())
    feed.report(feed.start(), 1, 0.9)
    feed.report(feed.start(), 1, 0.9)
    assert not feed.report(0, 2, -5.0)
    assert scheduler.milestone(feed.trials[0], feed.trials) == 3


def test_a_retried_trial_keeps_its_entries_and_is_not_judged_twice() -> None:
    scheduler = ASHAScheduler(max_t=27, reduction_factor=3)
    feed = Feed(scheduler, context())
    first = feed.start()
    feed.report(first, 1, 0.1)
    for _ in range(5):
        feed.report(feed.start(), 1, 0.9)
    feed.trials[first].t = 0.0  # it failed, and starts again from the beginning
    assert scheduler.milestone(feed.trials[first], feed.trials) == 3
    assert not feed.report(first, 1, 0.05)
    assert sorted(scheduler.state.rungs[0][0]) == [0.1] + [0.9] * 5


def test_a_failed_trials_entries_stay() -> None:
    scheduler = ASHAScheduler(max_t=27, reduction_factor=2)
    feed = Feed(scheduler, context())
    first = feed.start()
    feed.report(first, 1, 0.9)
    feed.end(first)
    (decision,) = feed.report(feed.start(), 1, 0.8)
    assert "rank 2 of 2 there" in decision.reason


def test_a_nan_stops_the_trial_and_is_not_entered() -> None:
    drive = Drive({"type": "asha", "reduction_factor": 3}, 1, value=lambda rng, trial, i: float("nan"), trouble=0).run()
    assert {trial.state for trial in drive.core.trials} == {TrialState.STOPPED}
    assert drive.core.scheduler.state.rungs == [[]]
    assert drive.core.experiment.leaderboard.best is None
    assert all(trial.reports == 1 for trial in drive.core.trials)


@pytest.mark.parametrize(
    ("max_t", "grace", "eta", "levels"),
    [
        (243, 1, 3, [1, 3, 9, 27, 81]),  # floats: log(243, 3) is 4.99...
        (244, 1, 3, [1, 3, 9, 27, 81, 243]),
        (1001, 1, 10, [1, 10, 100, 1000]),  # floats: log(1000, 10) is 2.99...
        (1000, 1, 10, [1, 10, 100]),
        (100, 5, 4, [5, 20, 80]),
        (10, 1, 2.5, [1, 2.5, 6.25]),
    ],
)
def test_rungs_are_exact(max_t: int, grace: int, eta: float, levels: list[float]) -> None:
    scheduler = ASHAScheduler(grace_period=grace, reduction_factor=eta)
    feed = Feed(scheduler, context(max_t=max_t))
    trial = feed.trials[feed.start()]
    seen = []
    while (at := scheduler.milestone(trial, feed.trials)) is not None and at < max_t:
        seen.append(at)
        trial.t = at
    assert seen == levels
    assert scheduler.milestone(trial, feed.trials) == max_t


def test_its_own_max_t_completes_a_trial() -> None:
    feed = Feed(ASHAScheduler(max_t=9, reduction_factor=3), context())
    number = feed.start()
    for t in range(1, 9):
        assert not feed.report(number, t, 0.5)
    assert feed.report(number, 9, 0.5) == [
        Complete(trial=number, reason="completed at iteration 9: reached max_t (9), a full training")
    ]


def test_a_trial_is_in_the_same_bracket_for_ever_and_brackets_fill_by_their_weights() -> None:
    def scheduler(seed: int) -> ASHAScheduler:
        made = ASHAScheduler(max_t=27, reduction_factor=3, brackets=3)
        made.setup(context(seed=seed))
        return made

    one, same, other = scheduler(1), scheduler(1), scheduler(2)
    brackets = [one.bracket(n) for n in range(3000)]
    assert brackets == [same.bracket(n) for n in range(3000)]
    assert brackets != [other.bracket(n) for n in range(3000)]
    shares = [brackets.count(s) / 3000 for s in range(3)]
    weights = [2.718281828**-s for s in range(3)]
    assert shares == pytest.approx([w / sum(weights) for w in weights], abs=0.03)


def test_a_bracket_begins_later() -> None:
    drive = Drive({"type": "asha", "reduction_factor": 2, "brackets": 3}, 5, num_samples=30, trouble=0).run()
    scheduler = drive.core.scheduler
    assert isinstance(scheduler, ASHAScheduler)
    for entry in drive.decisions():
        if isinstance(entry, Stop):
            first = 2 ** scheduler.bracket(entry.trial)
            assert drive.core.trials[entry.trial].iteration >= first
    assert {scheduler.bracket(n) for n in range(30)} == {0, 1, 2}
    assert any(isinstance(event, Reported) for _, event in drive.log)


@pytest.mark.parametrize(
    ("options", "pointer", "says"),
    [
        ({"max_t": 3, "grace_period": 5}, "/max_t", "at least grace_period (5)"),
        ({"max_t": 1_234_567, "grace_period": 1_234_568}, "/max_t", "at least grace_period (1234568), got 1234567"),
        ({"reduction_factor": 1}, "/reduction_factor", "at least 1.1"),
        ({"grace_period": 0}, "/grace_period", "above 0"),
        ({"brackets": 0}, "/brackets", "from 1 to 100"),
        ({"brackets": 1.5}, "/brackets", "an integer"),
        ({"brackets": 133_229_602, "reduction_factor": 5e151}, "/brackets", "from 1 to 100"),
        ({"max_t": "many"}, "/max_t", "a number"),
    ],
)
def test_bad_options(options: dict[str, object], pointer: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        ASHAScheduler(**options)  # type: ignore[arg-type]
    assert caught.value.errors[0][0] == pointer
    assert says in caught.value.errors[0][1]


def test_options_that_do_not_fit_the_experiment() -> None:
    with pytest.raises(SpecError, match=r"scheduler.max_t: expected at least grace_period \(9\), got 3"):
        ASHAScheduler(grace_period=9).setup(context(max_t=3))
    with pytest.raises(SpecError, match="the experiment's time_attr is 'training_iteration', not 'epoch'"):
        ASHAScheduler(time_attr="epoch").setup(context())
    with pytest.raises(SpecError, match="at most 4 brackets fit below max_t 27, got 6"):
        ASHAScheduler(reduction_factor=3, brackets=6).setup(context(max_t=27))
    with pytest.raises(SpecError, match="several brackets need a max_t"):
        ASHAScheduler(brackets=2).setup(context())


def test_trials_that_violate_the_constraints_come_after_all_others() -> None:
    limits = tuple(read({"size": {"max": 5}}))
    feed = Feed(ASHAScheduler(reduction_factor=2), context(constraints=limits))
    for _ in range(6):
        feed.start()
    assert feed.report(0, 1, 0.1, {"size": 9.0}) == [], "it is the only one"
    assert feed.report(1, 1, 0.2, {"size": 5.0}) == []
    [stopped] = feed.report(2, 1, 0.9, {"size": 6.0})
    assert isinstance(stopped, Stop)
    assert (
        "violates the constraints, and trials that satisfy them come first; rank 2 of 3 there, and only the best continues"
        in stopped.reason
    )
    [worse] = feed.report(3, 1, 0.9)
    assert "rank 4 of 4" in worse.reason, "a metric that was never reported is far outside"
    assert feed.report(4, 1, 0.15, {"size": 1.0}) == [], "2 of 5 continue"
    assert feed.report(5, 1, 0.1, {"size": 1.0}) == [], "3 of 6 continue"


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_with_constraints_decisions_are_those_of_the_pairs_feasible_then_score(seed: int) -> None:
    rng = random.Random(seed)
    feed = Feed(ASHAScheduler(reduction_factor=3), context(constraints=tuple(read({"size": {"max": 5}}))))
    entries: list[tuple[float, float]] = []
    for number in range(30):
        feed.start()
        value, size = round(rng.uniform(-1e6, 1e6), 1), rng.uniform(0, 10)
        entries.append((-max(0.0, size - 5), value if size <= 5 else 0.0))
        decided = feed.report(number, 1, value, {"size": size})
        cut = sorted(entries)[-max(1, len(entries) // 3)]
        assert bool(decided) == (entries[-1] < cut)
