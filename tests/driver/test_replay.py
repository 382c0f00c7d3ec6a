"""Replays of recorded trials: the same decisions as a search that had trained them, and nothing that was not recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench
from tuner import schedulers, search
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.states import TrialState
from tuner.driver.assemble import Parts
from tuner.driver.recording import Recording, recording
from tuner.driver.replay import Replay, replay
from tuner.driver.virtual import Simulation, Step, simulate
from tuner.errors import SpecError
from tuner.space import Space

SPACE = Space.from_python({"x": tuner.uniform(0, 1), "width": tuner.choice([16, 32, 64])})
MAX_T = 27


def curve(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    step = checkpoint or 0
    while True:
        step += 1
        value = config["x"] + 8 / config["width"] / step
        yield Step({"loss": value, "size": config["width"]}, seconds=1 + config["x"], checkpoint=step)


def searched(scheduler: Any, evaluate: Any = curve, **options: Any) -> Simulation:
    given: dict[str, Any] = {"num_samples": 20, "max_t": MAX_T, "search_alg": "random", **options}
    return simulate(evaluate, SPACE, metric="loss", mode="min", scheduler=scheduler, **given)


def spec_of(**fields: Any) -> Spec:
    limits = fields.pop("limits", Limits(max_concurrent_trials=4))
    given: dict[str, Any] = {"num_samples": 20, "max_t": MAX_T, "limits": limits, **fields}
    return Spec(name="s", space=SPACE.to_json(), objectives=(Objective("loss", "min"),), **given)


def again(recorded: Simulation | Recording, scheduler: Any, searcher: Any = None, **fields: Any) -> Replay:
    record = recorded if isinstance(recorded, Recording) else recording(recorded.log)
    parts = Parts(schedulers.from_argument(scheduler), search.from_argument(searcher) if searcher else None)
    return replay(spec_of(**fields), SPACE, record, parts)


def ends(simulation: Simulation) -> dict[int, tuple[TrialState, int]]:
    return {trial.number: (trial.state, trial.iteration) for trial in simulation.trials}


def replayed_ends(found: Replay) -> dict[int, tuple[Any, int]]:
    return {c.number: (c.replayed.state, c.replayed.iterations) for c in found.trials if c.replayed is not None}


@pytest.mark.parametrize("scheduler", ["asha", "asha_promotion", "hyperband", "median"])
def test_a_replay_of_whole_curves_is_the_search_that_the_scheduler_would_have_made(scheduler: str) -> None:
    direct = searched(scheduler)
    found = again(searched("fifo"), scheduler)
    assert replayed_ends(found) == ends(direct)
    assert found.replayed.reports == len(direct.history)
    assert found.replayed.best_value == direct.best_value
    assert found.replayed.best_trial == (direct.best_trial and direct.best_trial.number)
    assert found.censored == 0
    assert found.replayed.training_s == pytest.approx(sum(t.running_s for t in direct.trials))
    assert found.replayed.duration_s == pytest.approx(direct.seconds)


@pytest.mark.parametrize("scheduler", ["asha", "asha_promotion", "fifo"])
def test_a_replay_under_the_same_scheduler_repeats_what_happened(scheduler: str) -> None:
    happened = searched(scheduler, startup_s=0.5)
    found = again(happened, scheduler)
    assert all(c.replayed is not None and c.replayed.value == c.recorded.value for c in found.trials)
    assert replayed_ends(found) == ends(happened)
    assert {each.number: each.recorded.state for each in found.trials} == {t.number: t.state for t in happened.trials}
    assert found.saved == 0
    assert found.censored == 0
    assert "the same amount of training and found the same best trial" in found.summary


def test_a_trial_that_would_have_gone_on_is_censored_and_nothing_is_invented() -> None:
    happened = searched({"type": "asha", "reduction_factor": 3})
    found = again(happened, "fifo")
    stopped = {t.number: t.iteration for t in happened.trials if t.state is TrialState.STOPPED}
    assert stopped
    for each in found.trials:
        assert each.replayed is not None
        assert each.replayed.iterations == each.recorded.iterations, "it reports no more than was recorded"
        assert (each.replayed.state == "censored") == (each.number in stopped)
        if each.number in stopped:
            assert f"ends at iteration {stopped[each.number]}" in each.replayed.reason
    assert found.censored == len(stopped)
    assert any("The real cost would be higher than shown" in note for note in found.notes)
    assert found.summary == (
        f"fifo would have needed at least {found.replayed.reports} reports: {len(stopped)} of 20 recorded curves end before "
        "fifo would have ended the trials, so what it would have cost and found is not known"
    )


def test_savings_with_censored_trials_are_called_an_upper_bound() -> None:
    happened = searched({"type": "asha", "reduction_factor": 2})
    found = again(happened, {"type": "asha", "reduction_factor": 4, "grace_period": 1})
    assert found.replayed.reports < found.recorded.reports
    assert found.censored == 0 or f"at least {found.replayed.reports} reports" in found.summary
    words = "at most " if found.censored else ""
    assert f"would have saved {words}{100 * found.saved:.0f} % of the training" in found.summary
    assert ("is not known" in found.summary) == bool(found.censored)


def test_the_summary_is_one_sentence_with_the_options_that_were_changed() -> None:
    found = again(searched("fifo"), {"type": "asha", "reduction_factor": 3})
    assert found.method == "asha(reduction_factor=3)"
    assert found.summary.startswith(
        f"asha(reduction_factor=3) would have saved {100 * found.saved:.0f} % of the training and"
    )


def test_what_stopped_later_in_the_replay_keeps_the_best_of_what_it_saw() -> None:
    found = again(searched("fifo"), "asha")
    for each in found.trials:
        assert each.replayed is not None
        if each.replayed.iterations < each.recorded.iterations:
            assert each.recorded.value is not None
            assert each.replayed.value is not None
            assert each.replayed.value >= each.recorded.value


def failing(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in curve(config, checkpoint):
        if config["width"] == 16 and (step.checkpoint or 0) > 5:
            raise RuntimeError("out of memory")
        yield step


def test_a_trial_that_failed_fails_again_and_says_why() -> None:
    happened = searched("fifo", failing)
    found = again(happened, "asha")
    lost = {t.number for t in happened.trials if t.state is TrialState.FAILED}
    assert lost
    for each in found.trials:
        assert each.replayed is not None
        if each.number in lost and each.replayed.iterations == 5 and each.replayed.state is not TrialState.STOPPED:
            assert each.replayed.state is TrialState.FAILED
            assert "out of memory" in each.replayed.reason
    assert found.censored == 0, "a failure is an end that is known"


def crashing(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in curve(config, checkpoint):
        yield step
        if config["x"] < 0.2 and step.checkpoint == 2:
            raise RuntimeError("out of memory")


@pytest.mark.parametrize("scheduler", ["fifo", "asha"])
def test_the_summary_says_that_the_best_trial_failed(scheduler: str) -> None:
    found = again(searched("fifo", crashing), scheduler)
    best = next(c for c in found.trials if c.number == found.replayed.best_trial)
    assert best.replayed is not None
    assert best.replayed.state is TrialState.FAILED
    assert found.censored == 0
    assert found.summary.endswith("found the same best trial, which failed")


def short(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in curve(config, checkpoint):
        yield step
        if step.checkpoint == 12:
            return


def test_a_function_that_returned_by_itself_is_not_censored_beyond_its_end() -> None:
    found = again(searched("fifo", short), "fifo", max_t=100)
    assert found.censored == 0
    assert all(c.replayed is not None and c.replayed.state is TrialState.COMPLETED for c in found.trials)


def test_a_larger_max_t_censors_what_the_first_one_ended() -> None:
    found = again(searched("fifo"), "fifo", max_t=100)
    assert found.censored == 20


def without_checkpoints(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    for step in curve(config, checkpoint):
        yield replace(step, checkpoint=None)


def test_without_checkpoints_a_resumed_trial_trains_again_and_that_is_counted() -> None:
    found = again(searched("fifo", without_checkpoints), "asha_promotion")
    distinct = sum(c.replayed.iterations for c in found.trials if c.replayed is not None)
    assert found.replayed.reports > distinct
    assert any(f"and repeated {found.replayed.reports - distinct} reports" in note for note in found.notes)
    never_paused = again(searched("fifo", without_checkpoints), "asha")
    assert not any("had to start over" in note for note in never_paused.notes)


@pytest.mark.parametrize(("scheduler", "searcher"), [("asha", "tpe"), ("fifo", "random")])
def test_proposals_become_the_nearest_recorded_configuration_each_used_once(scheduler: Any, searcher: Any) -> None:
    happened = searched("fifo", num_samples=40)
    found = again(happened, scheduler, searcher, num_samples=40)
    started = [c for c in found.trials if c.replayed is not None]
    assert started
    assert found.replayed.trials == len(started), "no configuration is used twice"
    assert {c.number: c.params for c in found.trials} == {t.number: t.params for t in happened.trials}
    assert any("replaced by the nearest recorded one" in note for note in found.notes)
    assert found.replayed.best_value is not None
    assert found.replayed.best_value >= (found.recorded.best_value or 0.0)


def test_freeze_thaw_spends_its_budget_on_the_recorded_curves() -> None:
    happened = searched("fifo", num_samples=60)
    found = again(happened, {"type": "freeze_thaw", "budget": 5}, num_samples=60)
    assert found.replayed.reports <= 7 * MAX_T
    assert found.saved > 0.8
    assert found.censored == 0


def test_a_constraint_holds_for_both_sides() -> None:
    happened = searched("fifo")
    record = recording(happened.log)
    spec = spec_of(resolved={"constraints": {"size": {"max": 32}}})
    found = replay(spec, SPACE, record, Parts(schedulers.from_argument("asha")))
    widths = {trial.number: SPACE.config(trial.params, 0, trial.number)["width"] for trial in happened.trials}
    assert widths[found.recorded.best_trial or 0] <= 32
    assert widths[found.replayed.best_trial or 0] <= 32
    assert all((c.recorded.value is None) == (widths[c.number] == 64) for c in found.trials)


def test_the_constraints_of_the_experiment_hold_with_another_searcher() -> None:
    record = recording(searched("fifo").log)
    constraints = {"size": {"max": 16}}
    for searcher in ("random", {"type": "tpe"}):
        found = again(record, "asha", searcher, resolved={"constraints": constraints})
        inside, outside = ([c for c in found.trials if (c.params["width"] == 16) == good] for good in (True, False))
        assert max(c.replayed.iterations for c in inside if c.replayed) == MAX_T
        beaten = [c for c in outside if c.replayed and c.replayed.reason.startswith("stopped")]
        assert len(beaten) >= 0.8 * len(outside)
    own = again(record, "asha", {"type": "tpe", "constraints": constraints})
    assert all((c.recorded.value is None) == (c.params["width"] != 16) for c in own.trials)


def test_a_searcher_that_the_scheduler_does_not_use_is_not_named() -> None:
    record = recording(searched("fifo").log)
    scheduler = {"type": "freeze_thaw", "budget": 3}
    found = again(record, scheduler, {"type": "tpe", "constraints": {"size": {"max": 16}}})
    assert (found.method, found.search) == ("freeze_thaw(budget=3)", None)
    assert found.notes[-1] == "freeze_thaw proposes configurations itself, so tpe was not used"
    assert again(record, scheduler).notes[-1] != found.notes[-1]
    best = next(c for c in found.trials if c.number == found.replayed.best_trial)
    assert best.params["width"] == 16


@pytest.mark.parametrize("slots", [0, -1, "3"])
def test_a_number_of_concurrent_trials_that_makes_no_sense(slots: Any) -> None:
    record = recording(searched("fifo").log)
    with pytest.raises(SpecError, match="max_concurrent_trials: expected"):
        replay(spec_of(), SPACE, record, Parts(schedulers.from_argument("asha")), max_concurrent_trials=slots)


def test_population_based_training_is_refused_with_the_reason() -> None:
    with pytest.raises(SpecError, match="changes configurations during training"):
        again(searched("fifo"), {"type": "pbt", "perturbation_interval": 3})
    happened = searched({"type": "pbt", "perturbation_interval": 3}, num_samples=8)
    assert any(isinstance(entry, d.Exploit) for _, entry in happened.log)
    with pytest.raises(SpecError, match="continued from another trial's checkpoint"):
        recording(happened.log)


def test_an_experiment_without_reports_is_refused() -> None:
    with pytest.raises(SpecError, match="no trial of the experiment has reported"):
        again(recording([(1, e.DriverStarted(time=0.0, epoch=1))]), "asha")


def test_what_was_trained_twice_after_a_failure_is_recorded_once() -> None:
    attempts: dict[float, int] = {}

    def flaky(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        attempts[config["x"]] = attempts.get(config["x"], 0) + 1
        for step in curve(config, None):
            yield replace(step, checkpoint=None)
            if attempts[config["x"]] == 1 and step.checkpoint == 7:
                raise RuntimeError("flaky")

    happened = searched("fifo", flaky, max_failures=1, num_samples=5)
    record = recording(happened.log)
    assert all(len(trial.reports) == MAX_T for trial in record.trials.values())
    assert len(happened.history) == 5 * (MAX_T + 7)
    assert all(trial.end == "cut" for trial in record.trials.values())


def test_a_diverged_trial_diverges_again() -> None:
    def diverging(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in curve(config, checkpoint):
            bad = config["width"] == 64 and step.checkpoint == 4
            yield replace(step, metrics={"loss": math.nan}) if bad else step

    happened = searched("fifo", diverging)
    found = again(happened, "fifo")
    assert replayed_ends(found) == ends(happened)
    assert found.censored == 0


def test_slots_are_those_that_were_used_at_once() -> None:
    assert recording(searched("fifo", max_concurrent_trials=3).log).slots == 3


@pytest.mark.parametrize("max_t", [3, 9])
def test_a_report_before_the_start_of_its_segment_is_recorded_as_the_driver_counts_it(max_t: int) -> None:
    """Its time had counted from the end of the segment before. A trial that ended with it had run on in the recording."""
    bench = Bench(num_samples=1, max_t=max_t)
    bench.started(0)
    bench.reported(0)
    bench.command("pause")
    bench.reported(0, checkpoint=True)
    bench.ended(0)
    bench.command("resume")
    bench.now += 3600
    bench.reported(0)
    bench.started(0)
    trial = bench.core.trials[0]
    [found] = recording(bench.log).trials.values()
    assert (found.state, found.seconds) == (trial.state, trial.running_s)


def test_a_trial_that_continued_from_another_ones_checkpoint_is_left_out() -> None:
    """No experiment with a fork or a retry could be replayed or learned from: reports were said to be missing."""
    bench = Bench(num_samples=1, max_t=2, limits={"max_concurrent_trials": 1})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    for source in ("ckp_0_1_1", "ckp_gone"):
        point = {"params": {"x": 0.5}, "checkpoint": source, "parent": 0}
        bench.feed(e.Enqueued(time=bench.tick(), points=[point]))
    bench.reported(0)
    bench.ended(0)
    for number in (1, 2):
        bench.started(number)
        while bench.core.trials[number].iteration < 2:
            bench.reported(number)
        bench.ended(number)
    found = recording(bench.log)
    assert (list(found.trials), found.forks) == ([0, 2], 1), "the last one started from the beginning"


def test_trials_that_ran_when_their_driver_died_do_not_count_as_running_at_once_with_later_ones() -> None:
    bench = Bench(num_samples=4)
    for number in (0, 1):
        bench.started(number)
        bench.reported(number)
    after = bench.successor()
    after.core.decider.expect([cancel := e.Commanded(time=after.tick(), command="cancel")])
    after.feed(e.DriverStarted(time=after.tick(), epoch=2))
    after.feed(cancel)
    after.command("continue")
    for number in (2, 3):
        after.started(number)
        after.reported(number)
    assert recording(after.log).slots == 2
