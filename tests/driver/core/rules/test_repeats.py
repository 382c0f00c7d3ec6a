"""Test that leading configurations are evaluated again once a search is over, and what follows from their results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench, again, deletions
from tuner.domain import decisions as d
from tuner.domain.events import Amended, BudgetSpent, DriverStarted, Enqueued, Failure
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState
from tuner.driver.recording import recording
from tuner.driver.virtual import Simulation
from tuner.errors import SpecError


def searched(losses: Sequence[float], slots: int = 1, **options: Any) -> Bench:
    """Return a search whose trials have reported these losses, once and to their end."""
    limits = {"max_concurrent_trials": slots, "repeats": "auto", **options.pop("limits", {})}
    bench = Bench(num_samples=len(losses), max_t=1, limits=limits, **options)
    for number, loss in enumerate(losses):
        run(bench, number, loss)
    return bench


def run(bench: Bench, number: int, loss: float, **metrics: float) -> None:
    """Let a trial report a loss, which completes it."""
    bench.started(number)
    bench.reported(number, loss, **metrics)
    bench.ended(number)


def repeats(bench: Bench) -> list[tuple[int, int | None]]:
    return [(trial.number, trial.repeat_of) for trial in bench.core.trials if trial.repeat_of is not None]


def reasons(bench: Bench, kind: type[d.Decision] = d.Note) -> list[str]:
    return [entry.reason for _, entry in bench.log if isinstance(entry, kind)]


def agree(bench: Bench) -> Bench:
    """Return a new driver that has read the log back from the database, and check that it knows the same."""
    bench.log = [(seq, again(entry)) for seq, entry in bench.log]
    later = bench.successor()
    assert later.core.summary() == bench.core.summary()
    assert [(t.number, t.repeat_of) for t in later.core.trials] == [(t.number, t.repeat_of) for t in bench.core.trials]
    return later


MANY = [0.5, 0.1, 0.45, 0.4, 0.12, 0.35, 0.3, 0.6, 0.2, 0.25, 0.55, 0.22, 0.33, 0.41, 0.52]


def test_the_leader_is_repeated_first_and_a_lucky_one_loses_its_lead() -> None:
    bench = searched(MANY)
    assert repeats(bench) == [(15, 1)]
    assert bench.core.trials[15].params == bench.core.trials[1].params
    assert reasons(bench, d.Start)[-1] == (
        "repeats trial 1: it leads, and how much results differ from run to run is not known yet"
    )
    run(bench, 15, 0.5)
    assert repeats(bench)[1] == (16, 4)
    assert bench.core.trials[16].reason.startswith("repeats trial 4: loss 0.")
    assert "expected after 1 run, against 0." in bench.core.trials[16].reason
    run(bench, 16, 0.14)
    bench = agree(bench)
    best = bench.core.summary()["best"]
    assert isinstance(best, dict)
    assert (best["trial_number"], best["value"], best["runs"]["trials"]) == (4, pytest.approx(0.13), [4, 16])
    assert best["runs"]["values"] == [0.12, 0.14]
    assert best["params"] == bench.core.trials[4].params
    ranking = bench.core.experiment.repeats.ranking
    assert ranking is not None
    expected = {place.runs.number: -place.mean for place in ranking.estimates}
    listed, single = best["runs"]["repeated"], best["runs"]["single"]
    assert [(one["trials"], one["mean"]) for one in listed] == [
        ([4, 16], pytest.approx(0.13)),
        ([1, 15], pytest.approx(0.3)),
    ]
    assert [one["expected"] for one in listed] == [pytest.approx(expected[4]), pytest.approx(expected[1])]
    for number in (0, 8, 9):
        value = single["middle"] + single["weight"] * (MANY[number] - single["middle"])
        assert value == pytest.approx(expected[number])
    assert bench.core.best_trial() is bench.core.trials[4]


def test_they_end_with_a_fifth_of_the_training_and_say_what_they_have_shown() -> None:
    bench = searched(MANY)
    for loss in (0.3, 0.3, 0.28):
        run(bench, len(bench.core.trials) - 1, loss)
    assert len(repeats(bench)) == 3
    assert bench.core.state is ExperimentState.COMPLETED
    assert bench.core.experiment.finishing == "all 15 trials ended; 3 repeats made"
    note = reasons(bench)[-1]
    assert note.startswith("3 repeats of leading configurations: loss of the same configuration differs by about 0.1")
    assert "(standard deviation, 3 repeated runs); trial " in note
    assert " leads with a mean of " in note
    assert note.endswith("no more are made: they would take more than a fifth of the training before them")


def test_they_end_when_another_one_would_not_change_the_choice() -> None:
    """They would go on until they have taken a fifth of the training."""
    losses = [0.1, *(1.0 + number / 100 for number in range(40))]
    bench = searched(losses)
    for loss in (0.11, 1.01):
        number = len(bench.core.trials) - 1
        run(bench, number, loss)
    assert repeats(bench) == [(41, 0), (42, 1)]
    assert bench.core.state is ExperimentState.COMPLETED
    assert "no more are made: another one is expected to improve the choice by only " in reasons(bench)[-1]


@pytest.mark.parametrize("slots", [1, 4])
def test_a_number_limits_them_and_none_are_made_by_default(slots: int) -> None:
    bench = searched(MANY, slots, limits={"repeats": 2})
    rng = Random(1)
    while bench.core.state is ExperimentState.RUNNING:
        (number, *_) = [t.number for t in bench.core.trials if not t.state.ended]
        run(bench, number, 0.3 + 0.2 * rng.random())
    assert len(repeats(bench)) == 2
    assert "no more are made: repeats is 2" in reasons(bench)[-1]
    none = searched(MANY, slots, limits={"repeats": 0})
    assert (none.core.state, repeats(none)) == (ExperimentState.COMPLETED, [])
    assert none.core.experiment.finishing == "all 15 trials ended"


def test_results_that_do_not_differ_end_them_after_the_first_pair() -> None:
    bench = searched(MANY)
    run(bench, 15, MANY[1])
    assert repeats(bench) == [(15, 1)]
    assert bench.core.state is ExperimentState.COMPLETED
    assert "results do not differ from run to run: trials 1 and 15 have the same configuration" in reasons(bench)[-1]
    assert "differs by about" not in reasons(bench)[-1]


def test_an_equal_pair_of_a_coarse_metric_may_be_chance() -> None:
    coarse = [round(loss, 1) for loss in MANY]
    assert len(set(coarse)) < len(coarse)
    bench = searched(coarse, limits={"repeats": 9})
    first = repeats(bench)[0][1]
    assert first is not None
    run(bench, 15, coarse[first])
    assert bench.core.state is ExperimentState.RUNNING
    run(bench, 16, coarse[repeats(bench)[1][1] or 0])
    run(bench, 17, coarse[repeats(bench)[2][1] or 0])
    assert bench.core.state is ExperimentState.COMPLETED
    assert len(repeats(bench)) == 3


def test_equal_configurations_of_the_search_itself_are_runs_too() -> None:
    points = ({"x": 0.5}, {"x": 0.5}, {"x": 0.7}, {"x": 0.7})
    bench = searched([0.1, 0.3, 0.12, 0.13, *MANY], points_to_evaluate=points)
    assert "how much results differ" not in bench.core.trials[19].reason  # known from the search
    assert bench.core.experiment.repeats.ranking is not None
    assert bench.core.experiment.repeats.ranking.pairs == 2


def test_they_run_beside_each_other_once_the_noise_is_known() -> None:
    bench = searched(MANY, slots=4)
    assert repeats(bench) == [(15, 1)]
    run(bench, 15, 0.3)
    assert len(repeats(bench)) == 3  # a fifth of 15 trainings
    assert len(set(repeats(bench)[1:])) == 2


def test_a_failed_repeat_does_not_make_a_finished_search_a_failed_one() -> None:
    bench = searched(MANY, limits={"max_failed_trials": 1})
    assert repeats(bench) == [(15, 1)]
    bench.started(15)
    bench.ended(15, "failed", Failure(kind="user", message="ValueError: unlucky", rank=0))
    assert repeats(bench)[1:], "another leader is repeated"
    while bench.core.state is ExperimentState.RUNNING:
        run(bench, repeats(bench)[-1][0], 0.2)
    assert bench.core.state is ExperimentState.COMPLETED


@pytest.mark.parametrize("how", ["fails", "diverges", "violates"])
def test_a_configuration_that_does_not_always_work_does_not_lead(how: str) -> None:
    constraints = {"constraints": {"size": {"max": 1}}} if how == "violates" else {}
    bench = Bench(
        num_samples=15,
        max_t=1,
        search={"type": "tpe", **constraints},
        limits={"max_concurrent_trials": 1, "repeats": 3, "max_failures": 1},
    )
    for number, loss in enumerate(MANY):
        run(bench, number, loss, size=0.5)
    assert repeats(bench) == [(15, 1)]
    for _ in range(2 if how == "fails" else 1):
        bench.started(15)
        bench.ended(15, "failed", Failure(kind="user", message="ValueError: unlucky", rank=0))
    if how != "fails":  # once it is tried again
        run(bench, 15, math.nan if how == "diverges" else 0.09, size=2.0)
    word = {"fails": "failed", "diverges": "diverged", "violates": "violates the constraints"}[how]
    while bench.core.state is ExperimentState.RUNNING:
        run(bench, len(bench.core.trials) - 1, 0.15, size=0.5)
    best = agree(bench).core.best_trial()
    assert best is not None
    assert best.number != 1
    assert bench.core.trials[16].feasible is (True if how == "violates" else None), "there are constraints, or none"
    shown = bench.core.summary()["best"]
    assert isinstance(shown, dict)
    assert shown["runs"]["dropped"] == [1]
    assert f"trial 1 does not count, because its repeat, trial 15, {word}" in reasons(bench)[-1]
    assert all(first != 1 for _, first in repeats(bench)[1:])


def test_the_loss_of_a_node_says_nothing_about_the_configuration() -> None:
    bench = searched(MANY, limits={"repeats": 3, "max_system_failures": 0})
    bench.started(15)
    bench.ended(15, "failed", Failure(kind="system", message="the node was lost"))
    assert repeats(bench) == [(15, 1), (16, 1)]
    assert bench.core.experiment.repeats.dropped == {}


def test_a_new_driver_goes_on_with_a_repeat_that_its_predecessor_began() -> None:
    bench = searched(MANY, checkpoint={"frequency": 1, "interval_s": None}, scheduler={"type": "fifo"})
    bench.started(15)
    later = agree(bench)
    later.feed(DriverStarted(time=later.tick(), epoch=2))
    assert len(later.core.trials[15].segments) == 2
    run(later, 15, 0.5)
    assert repeats(later) == [(15, 1), (16, 4)]


def test_a_repeat_trains_as_long_as_its_original_did() -> None:
    bench = Bench(
        num_samples=8, limits={"max_concurrent_trials": 1, "repeats": 1}, scheduler={"type": "asha", "max_t": 9}
    )
    lengths = {}
    for number in range(8):
        bench.started(number)
        while not bench.core.trials[number].state.ended:
            bench.reported(number, 1.0 - 0.1 * number if number < 4 else 2.0 + number)
        bench.ended(number)
        lengths[number] = bench.core.trials[number].iteration
    assert len(set(lengths.values())) > 1
    ((number, first),) = repeats(bench)
    assert first is not None
    bench.started(number)
    while not bench.core.trials[number].state.ended:
        assert bench.verdict(number) == "continue"
        bench.reported(number, 5.0)  # ASHA would stop it
    assert bench.core.trials[number].iteration == lengths[first]
    assert bench.core.trials[number].reason == f"trained as long as trial {first}, which it repeats"
    assert bench.verdict(number) == "stop"


def test_pausing_the_experiment_pauses_a_repeat_and_resuming_continues_it() -> None:
    bench = searched(MANY, limits={"repeats": 1})
    bench.started(15)
    bench.command("pause")
    bench.ended(15)
    assert bench.core.state is ExperimentState.PAUSED
    bench = agree(bench)
    bench.command("resume")
    run(bench, 15, 0.2)
    assert (bench.core.state, bench.states[15]) == (ExperimentState.COMPLETED, "completed")


def test_a_repeat_that_a_user_has_paused_is_not_waited_for() -> None:
    bench = searched(MANY, limits={"repeats": 1})
    bench.started(15)
    bench.command("pause", 15)
    bench.ended(15)
    assert (bench.core.state, bench.states[15]) == (ExperimentState.COMPLETED, "stopped")


def test_more_trials_go_on_with_the_search_and_repeats_follow_again() -> None:
    bench = searched(MANY, limits={"repeats": "auto"})
    while bench.core.state is ExperimentState.RUNNING:
        run(bench, len(bench.core.trials) - 1, 0.2)
    before = len(repeats(bench))
    bench.feed(Amended(time=bench.tick(), changes={"num_samples": 25}))
    bench.command("continue")
    for _ in range(10):
        number = len(bench.core.trials) - 1
        assert bench.core.trials[number].repeat_of is None
        run(bench, number, 0.4)
    bench = agree(bench)
    assert len(bench.core.trials.searched) == 25
    assert len(repeats(bench)) == before + 1


def test_maximising_and_the_last_value_count_as_they_do_in_the_search() -> None:
    bench = Bench(
        num_samples=8,
        max_t=2,
        objectives=(Objective("loss", "max"),),
        scope="last",
        limits={"max_concurrent_trials": 1, "repeats": 1},
    )
    for number in range(8):
        bench.started(number)
        bench.reported(number, 100.0 - number)
        bench.reported(number, float(number))
        bench.ended(number)
    assert repeats(bench) == [(8, 7)]
    bench.started(8)
    bench.reported(8, 50.0)
    bench.reported(8, 6.8)
    bench.ended(8)
    best = agree(bench).core.summary()["best"]
    assert isinstance(best, dict)
    assert (best["trial_number"], best["value"], best["runs"]["values"]) == (7, pytest.approx(6.9), [7.0, 6.8])


def test_the_best_values_over_time_do_not_count_repeats() -> None:
    bench = searched(MANY, limits={"repeats": 1})
    run(bench, 15, 0.01)
    assert bench.core.experiment.leaderboard.best == (-0.1, 1)
    assert bench.core.experiment.leaderboard.tells_best
    assert list(bench.best.values()) == [{"loss": 0.5}, {"loss": 0.1}]


def test_a_sixth_of_a_time_budget_is_kept_for_them() -> None:
    bench = Bench(
        max_t=1, num_samples=None, limits={"max_concurrent_trials": 1, "time_budget_s": 60, "repeats": "auto"}
    )
    losses = iter([*MANY, *MANY])
    while not repeats(bench):
        run(bench, len(bench.core.trials) - 1, next(losses))
    assert 50 <= bench.core.experiment.running_s < 60
    assert bench.core.state is ExperimentState.RUNNING
    bench.started(len(bench.core.trials) - 1)


def test_the_trials_that_run_when_the_time_for_them_begins_stop() -> None:
    limits = {"max_concurrent_trials": 2, "time_budget_s": 30, "repeats": "auto"}
    bench = Bench(max_t=3, num_samples=None, limits=limits)
    bench.started(0)
    while not bench.core.trials[0].state.ended:
        bench.reported(0, 0.1)
    bench.ended(0)
    bench.started(1)
    while not bench.core.trials[1].state.ended:
        bench.reported(1, 0.5)
        bench.now = 26.0
    why = "the rest of the time budget is kept for repeats of the leading configurations"
    assert (bench.core.trials[1].reason, bench.states[1]) == (why, "stopped")


def test_no_time_is_kept_if_a_repeat_would_take_too_long() -> None:
    bench = Bench(max_t=99, num_samples=None, limits={"max_concurrent_trials": 1, "time_budget_s": 30, "repeats": 2})
    bench.started(0)
    while bench.now < 29:
        bench.reported(0, 0.5)
    assert bench.states == ["running"]


def test_with_a_time_budget_the_first_ones_run_beside_each_other_and_stop_if_results_do_not_differ() -> None:
    bench = Bench(num_samples=15, max_t=1, limits={"max_concurrent_trials": 3, "time_budget_s": 1e4, "repeats": 9})
    for number, loss in enumerate(MANY):
        run(bench, number, loss)
    assert [number for number, _ in repeats(bench)] == [15, 16, 17]
    for number in (15, 16, 17):
        bench.started(number)
    bench.reported(15, MANY[repeats(bench)[0][1] or 0])
    assert bench.states[15:] == ["completed", "stopped", "stopped"]
    for number in (15, 16, 17):
        bench.ended(number)
    assert (bench.core.state, len(repeats(bench))) == (ExperimentState.COMPLETED, 3)


def test_a_spent_time_budget_ends_them() -> None:
    bench = searched(MANY, limits={"time_budget_s": 1000})
    bench.started(15)
    bench.feed(BudgetSpent(time=bench.tick(), seconds=1000))
    bench.ended(15)
    assert (bench.core.state, bench.states[15]) == (ExperimentState.COMPLETED, "stopped")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scheduler": {"type": "pbt", "hyperparam_mutations": {"x": [0.1, 0.9]}}}, "changes configurations"),
        ({"objectives": (Objective("loss", "min"), Objective("size", "min"))}, "one objective"),
        ({"space": {"x": tuner.uniform(0, 1), "y": tuner.sample_from(lambda: 1)}}, "sample_from"),
    ],
)
def test_they_are_refused_where_a_configuration_cannot_be_run_again(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        Bench(limits={"repeats": 1, "max_concurrent_trials": 1}, **options)


def simulated(scheduler: str, noise: float, **options: Any) -> Simulation:
    rng = Random(3)

    def evaluate(config: dict[str, float], checkpoint: tuple[int, float] | None) -> Iterator[tuner.Step]:
        done, luck = checkpoint or (0, rng.gauss(0, noise))
        for report in range(done, 9):
            loss = (config["x"] - 0.3) ** 2 + luck + 1 / (report + 1)
            yield tuner.Step(metrics={"loss": loss}, seconds=1, checkpoint=(report + 1, luck))

    space = {"x": tuner.uniform(0, 1)}
    return tuner.simulate(
        evaluate, space, metric="loss", mode="min", num_samples=24, max_t=9, scheduler=scheduler, **options
    )


@pytest.mark.parametrize("scheduler", ["fifo", "asha", "freeze_thaw", "median", "hyperband", "asha_promotion"])
def test_every_scheduler_that_keeps_configurations_can_be_followed_by_repeats(scheduler: str) -> None:
    done = simulated(scheduler, 0.1, repeats=4)
    made = [trial for trial in done.trials if trial.repeat_of is not None]
    assert done.state is ExperimentState.COMPLETED
    assert 2 <= len(made) <= 4
    assert {str(trial.state) for trial in made} == {"completed"}
    assert {trial.iteration for trial in made} <= {done.trials[trial.repeat_of or 0].iteration for trial in made}
    without = simulated(scheduler, 0.1)
    assert [trial.params for trial in done.trials[: len(without.trials)]] == [trial.params for trial in without.trials]


def test_a_deterministic_function_is_repeated_once() -> None:
    done = simulated("asha", 0.0, repeats="auto")
    assert sum(trial.repeat_of is not None for trial in done.trials) == 1


def test_the_best_value_of_a_batch_is_kept_if_the_first_repeat_starts_in_it() -> None:
    """The driver then no longer finds the best values in the reports, and this report was made before."""
    bench = Bench(num_samples=2, max_t=1, limits={"max_concurrent_trials": 1, "repeats": 1})
    run(bench, 0, 0.5)
    bench.started(1)
    last = bench.reported(1, 0.1)
    last.absorb(bench.ended(1))
    assert repeats(bench) == [(2, 1)]
    assert list(last.best.values()) == [{"loss": 0.1}]


def test_a_configuration_that_loses_its_lead_to_a_repeat_and_wins_it_back_still_has_its_best_checkpoint() -> None:
    keep = {"frequency": 1, "interval_s": None, "keep_best": 0}
    bench = Bench(num_samples=2, max_t=2, limits={"max_concurrent_trials": 1, "repeats": 4}, checkpoint=keep)
    deleted, leaders = [], []
    runs = {0: ((0.1, 0.4), (0.9, 0.9), *[(0.01, 0.2)] * 4), 1: ((0.12, 0.15), *[(0.8, 0.8)] * 4)}
    given = {number: iter(losses) for number, losses in runs.items()}
    while bench.core.state is ExperimentState.RUNNING:
        number = len(bench.core.trials) - 1
        again_of = bench.core.trials[number].repeat_of
        bench.started(number)
        for loss in next(given[number if again_of is None else again_of]):
            deleted += deletions(bench.reported(number, loss, checkpoint=True))
        deleted += deletions(bench.ended(number))
        best = bench.core.best_trial()
        leaders.append(best.number if best else None)
    assert leaders[-1] == 0
    assert 1 in leaders
    assert "ckp_0_1_1" not in deleted
    leads = agree(bench).core.summary()["best"]
    assert isinstance(leads, dict)
    assert leads["checkpoint_id"] == "ckp_0_1_1"


def test_a_repeat_does_not_count_once_its_original_has_trained_on() -> None:
    often = {"frequency": 1, "interval_s": None}
    bench = Bench(num_samples=2, max_t=9, limits={"max_concurrent_trials": 2, "repeats": 3}, checkpoint=often)
    bench.started(0)
    bench.started(1)
    for _ in range(9):
        bench.reported(0, 0.5)
    bench.reported(1, 0.1, checkpoint=True)
    bench.command("pause", 1)
    bench.reported(1, 0.1, checkpoint=True)
    bench.ended(0)
    bench.ended(1)
    bench.started(2)
    for _ in range(2):
        bench.reported(2, 0.3)
    bench.ended(2)
    assert repeats(bench)[0] == (2, 1)
    assert bench.core.experiment.repeats.ranking is not None
    assert bench.core.experiment.repeats.ranking.pairs == 1
    bench.command("resume", 1)
    bench.started(1)
    for _ in range(7):
        bench.reported(1, 0.01)
    bench.ended(1)
    assert (bench.core.trials[1].iteration, bench.core.trials[2].iteration) == (9, 2)
    assert agree(bench).core.experiment.repeats.ranking.pairs == 0  # type: ignore[union-attr]


def test_a_trial_that_cannot_be_repeated_keeps_its_lead() -> None:
    bench = Bench(num_samples=2, max_t=2, limits={"max_concurrent_trials": 1, "repeats": 1})
    bench.started(0)
    bench.reported(0, 0.4, checkpoint=True)
    bench.ended(0, "failed", Failure(kind="user", message="ValueError: once", rank=0))
    bench.command("retry", 0)
    for number, losses in ((1, (0.5, 0.5)), (2, (0.1,)), (3, (0.6, 0.6))):
        bench.started(number)
        for loss in losses:
            bench.reported(number, loss)
        bench.ended(number)
    assert repeats(bench)[0][0] == 3
    assert bench.core.trials[2].segments[0].cause == "fork"
    best = agree(bench).core.summary()["best"]
    assert isinstance(best, dict)
    assert (best["trial_number"], best["value"], best.get("runs")) == (2, 0.1, None)


def test_huge_results_of_a_repeat_are_bad_ones() -> None:
    bench = searched(MANY, scope="last", limits={"repeats": 2})
    run(bench, 15, 1e300)
    run(bench, 16, 0.2)
    best = agree(bench).core.best_trial()
    assert best is not None
    assert (bench.core.state, best.number) == (ExperimentState.COMPLETED, 4)


def test_the_recording_of_a_search_has_neither_its_repeats_nor_their_time() -> None:
    bench = searched(MANY, limits={"repeats": 3})
    alone = recording([*bench.log])
    first = len(alone.trials)
    while bench.core.state is ExperimentState.RUNNING:
        run(bench, len(bench.core.trials) - 1, 0.3)
    found = recording(bench.log)
    assert len(bench.core.trials) == first + 3
    assert (len(found.trials), found.seconds) == (first, alone.seconds)
    bench.feed(Amended(time=bench.tick(), changes={"num_samples": 16}))
    bench.command("continue")
    run(bench, first + 3, 0.3)
    assert recording(bench.log).seconds == alone.seconds + 5  # the events since the last repeat


def test_a_trial_that_a_user_enqueues_in_the_time_for_repeats_may_use_it() -> None:
    limits = {"max_concurrent_trials": 1, "time_budget_s": 60, "repeats": "auto"}
    bench = Bench(num_samples=None, limits=limits, max_t=3)
    number = 0
    while bench.core.trials[number].repeat_of is None:
        bench.started(number)
        while not bench.core.trials[number].state.ended:
            bench.reported(number, 1.0 / (number + 1))
        bench.ended(number)
        number = len(bench.core.trials) - 1
    bench.feed(Enqueued(time=bench.tick(), points=[{"params": {"x": 0.5}}]))
    bench.started(number)
    while not bench.core.trials[number].state.ended:
        bench.reported(number, 0.3)
    bench.ended(number)
    bench = bench.successor()
    bench.feed(DriverStarted(time=bench.tick(), epoch=2))
    bench.started(number + 1)
    for _ in range(3):
        bench.reported(number + 1, 0.3)
    assert bench.states[number + 1] == "completed"
