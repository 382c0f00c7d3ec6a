"""Test how the core handles failures: of training code, of workers, and of a user's functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench, again, interrupts, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.events import Failure
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Population
from tuner.driver.assemble import Parts, assemble
from tuner.driver.core.rules.reports import unusable
from tuner.driver.core.state.limits import GIVE_UP_AFTER
from tuner.schedulers import FIFOScheduler
from tuner.schedulers.base import Fact
from tuner.schedulers.stoppers import FunctionStopper
from tuner.space import Space


def test_system_failures_retry_by_themselves_and_user_failures_count() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1, "max_failures": 1})
    bench.started(0)
    bench.reported(0, checkpoint=True)
    out = bench.ended(0, "failed", Failure(kind="system", message="the node was lost", rank=1, node="n2"))
    assert launches(out) == [(0, 2)]
    assert "rank 1 on n2: the node was lost" in bench.core.trials[0].reason
    bench.started(0)
    out = bench.ended(0, "failed", Failure(kind="user", message="ValueError: no", rank=0))
    assert launches(out) == [(0, 3)]
    bench.started(0)
    out = bench.ended(0, "failed", Failure(kind="user", message="ValueError: no", rank=0))
    assert launches(out) == [(1, 1)]
    assert bench.states[0] == "failed"
    trial = bench.core.trials[0]
    assert (trial.failures, trial.system_failures) == (2, 1)


@pytest.mark.parametrize("synch", [False, True])
def test_a_function_of_the_users_that_raises_in_the_scheduler_ends_the_experiment_in_words(synch: bool) -> None:
    """The function would raise for every later driver too."""

    def explore(params: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / 0}

    space = Space.from_python({"x": tuner.uniform(0, 1)})
    pbt = tuner.PopulationBasedTraining(
        perturbation_interval=1, quantile_fraction=0.5, custom_explore_fn=explore, hyperparam_mutations={}, synch=synch
    )
    bench = Bench(num_samples=2)
    bench.core = assemble(bench.spec, space, Parts(scheduler=pbt))
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    for number in (0, 1):
        bench.started(number)
    for number in (0, 1):
        bench.reported(number, loss=float(number), checkpoint=True)
        bench.ended(number)
    for number in (0, 1):
        if bench.core.trials[number].holds_resources:
            bench.reported(number, loss=float(number), checkpoint=True)
            bench.ended(number)
    assert bench.core.state is ExperimentState.FAILED
    assert "the scheduler raised ZeroDivisionError: division by zero (explore, line " in (
        bench.core.experiment.error or ""
    )


def test_an_error_without_a_text_of_a_users_scheduler_ends_the_experiment_in_words() -> None:
    class Untold(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    class Raises(FIFOScheduler):
        def decide(self, fact: Fact, trials: Population) -> Sequence[d.Decision]:
            raise Untold

    bench = Bench(num_samples=1)
    bench.core = assemble(bench.spec, bench.space, Parts(scheduler=Raises()))
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    bench.started(0)
    bench.reported(0)
    bench.ended(0)
    assert "the scheduler raised Untold: <Untold.__str__ raised KeyError> (decide, line " in (
        bench.core.experiment.error or ""
    )


def test_the_error_says_that_the_scheduler_raised_even_if_a_trial_had_failed_before() -> None:
    def explore(params: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / 0}

    pbt = tuner.PopulationBasedTraining(
        perturbation_interval=1, quantile_fraction=0.5, custom_explore_fn=explore, hyperparam_mutations={}
    )
    bench = Bench(num_samples=3, limits={"max_concurrent_trials": 3, "max_failures": 0})
    bench.core = assemble(bench.spec, bench.space, Parts(scheduler=pbt))
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    for number in range(3):
        bench.started(number)
    bench.reported(2, loss=0.5)
    bench.ended(2, "failed", Failure(kind="user", message="KeyError: 'width'", rank=1, node="n1"))
    for number in (0, 1):
        bench.reported(number, loss=float(number), checkpoint=True)
    for number in (0, 1):
        bench.ended(number)
    assert bench.core.state is ExperimentState.FAILED
    error = bench.core.experiment.error or ""
    assert error.startswith("the scheduler raised ZeroDivisionError: division by zero (explore, line ")
    assert error.endswith("; trial 2, rank 1 on n1: KeyError: 'width'")
    assert bench.successor().core.experiment.error == error


def fail(bench: Bench, numbers: range) -> None:
    """Let trials fail before they report, each in another line: failures that are alike end a search before the limit."""
    for number in numbers:
        bench.started(number)
        failure = Failure(kind="user", message=f"KeyError: {number}", rank=0, traceback=f'File "a.py", line {number}')
        bench.ended(number, "failed", failure)


def test_the_error_of_a_search_that_gives_up_names_one_failure_once() -> None:
    bench = Bench(num_samples=20, limits={"max_concurrent_trials": 1})
    fail(bench, range(GIVE_UP_AFTER))
    assert bench.core.state is ExperimentState.FAILED
    assert bench.core.experiment.error == (
        "10 trials failed and none has ever reported; the last one: trial 9, rank 0: KeyError: 9"
    )


def test_a_search_that_gave_up_tries_again_once_a_user_continues_it() -> None:
    bench = Bench(num_samples=50, limits={"max_concurrent_trials": 1})
    fail(bench, range(GIVE_UP_AFTER))
    assert bench.core.state is ExperimentState.FAILED
    bench = bench.successor()
    assert launches(bench.command("continue")) == [(GIVE_UP_AFTER, 1)]
    fail(bench, range(GIVE_UP_AFTER, 2 * GIVE_UP_AFTER - 1))
    assert bench.core.state is ExperimentState.RUNNING
    bench = bench.successor()
    fail(bench, range(2 * GIVE_UP_AFTER - 1, 2 * GIVE_UP_AFTER))
    assert bench.core.state is ExperimentState.FAILED
    assert bench.states == ["failed"] * 20


def test_a_scheduler_that_raises_ends_trials_too_that_are_leaving_for_an_exploit() -> None:
    calls: list[int] = []

    def explore(params: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError("no more")
        return {"x": 0.5}

    pbt = tuner.PopulationBasedTraining(
        perturbation_interval=1, quantile_fraction=0.5, custom_explore_fn=explore, hyperparam_mutations={}
    )
    bench = Bench(num_samples=4, limits={"max_concurrent_trials": 4})
    bench.core = assemble(bench.spec, bench.space, Parts(scheduler=pbt))
    bench.log.clear()
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    for number in range(4):
        bench.started(number)
    bench.reported(0, loss=0.0, checkpoint=True)
    bench.reported(1, loss=1.0)
    assert bench.verdict(1) == "exploit"
    bench.reported(2, loss=2.0)
    assert len(calls) == 2
    assert bench.states == ["stopped"] * 4
    assert launches(bench.ended(1)) == []
    for number in (0, 2, 3):
        assert bench.verdict(number) == "stop"
        bench.ended(number)
    assert bench.core.state is ExperimentState.FAILED
    assert sum(isinstance(entry, d.Finish) for _, entry in bench.log) == 1


def stops(trial: int, metrics: dict[str, float]) -> bool:
    raise ValueError(f"no idea about {trial}")


@pytest.mark.parametrize("cause", ["metric", "stop", "exception"])
def test_why_a_trial_failed_is_the_same_after_a_restart(cause: str) -> None:
    bench = Bench(num_samples=2)
    if cause == "stop":
        bench.core = assemble(bench.spec, bench.space, Parts(stopper=FunctionStopper(stops)))
        bench.log.clear()
        bench.feed(e.DriverStarted(time=0.0, epoch=1))
    for number in (0, 1):
        bench.started(number)
    match cause:
        case "metric":
            bench.feed(
                e.Reported(time=bench.tick(), trial=0, segment=1, report_no=1, iteration=1, metrics={"los": 1.0})
            )
        case "stop":
            bench.reported(0)
        case "exception":
            broken = Failure(kind="user", cause="exception", message="ValueError: no", traceback="where it was")
            bench.ended(0, "failed", broken)
    failure = bench.core.trials[0].failure
    assert failure is not None
    assert failure.cause == cause
    assert ("no idea about" in failure.traceback) == (cause == "stop")
    bench.log = [(seq, again(entry)) for seq, entry in bench.log]
    for trial in bench.core.trials:
        trial.segments[-1].milestone = trial.segments[-1].decide_at = None  # what its ranks were told is not of the log
    assert list(bench.successor().core.trials) == list(bench.core.trials)


def test_what_a_stop_function_said_of_a_report_that_was_lost_does_not_count_for_the_next_segment() -> None:
    bench = Bench(num_samples=1, stop={"loss": -9.0})
    stopper = FunctionStopper(stops)
    stopper.outside = True
    bench.core = assemble(bench.spec, bench.space, Parts(stopper=stopper))
    bench.log.clear()
    bench.feed(e.DriverStarted(time=0.0, epoch=1))
    bench.started(0)
    bench.feed(e.StopJudged(time=bench.tick(), trial=0, segment=1, iteration=1, answers=[{"stop": True}]))
    bench.ended(0, "failed", Failure(kind="system", cause="node_lost", message="gone"))  # and its report with it
    bench.started(0)
    bench.reported(0)
    assert bench.states == ["running"], "the function lets this report go on, or there would be an answer to it"
    bench.feed(e.StopJudged(time=bench.tick(), trial=0, segment=2, iteration=2, answers=[{"stop": True}]))
    bench.reported(0)
    assert bench.states == ["completed"]


REFUSED = Failure(kind="placement", cause="placement", message="this cluster can never run 64 workers with 1 CPU each")


def test_workers_that_the_cluster_can_never_hold_end_the_experiment_at_the_first_refusal() -> None:
    bench = Bench(num_samples=100)
    out = bench.ended(0, "failed", REFUSED)
    assert launches(out) == []
    assert interrupts(out) == [1]
    bench.ended(1, "failed", REFUSED)  # its own refusal was on its way
    assert bench.states == ["failed", "stopped"]
    assert bench.core.state is ExperimentState.FAILED
    assert bench.core.experiment.error == "trial 0: this cluster can never run 64 workers with 1 CPU each"
    assert bench.core.experiment.finishing == f"every trial asks for the same workers; {bench.core.experiment.error}"
    assert bench.successor().core.state is ExperimentState.FAILED


def test_a_refusal_ends_an_experiment_that_has_results_too() -> None:
    bench = Bench(num_samples=100)
    bench.started(0)
    bench.reported(0)
    bench.verdict(0)
    out = bench.ended(1, "failed", REFUSED)
    assert interrupts(out) == [0]
    bench.ended(0)
    assert (bench.states, bench.core.state) == (["stopped", "failed"], ExperimentState.FAILED)
    assert bench.core.best_trial() is bench.core.trials[0]


def test_workers_that_were_lost_while_they_started_are_started_again() -> None:
    bench = Bench(limits={"max_concurrent_trials": 1, "max_system_failures": 2})
    lost = Failure(kind="system", cause="lost_at_start", message="the workers were lost during start-up")
    for ordinal in (2, 3):
        assert launches(bench.ended(0, "failed", lost)) == [(0, ordinal)]
    assert launches(bench.ended(0, "failed", lost)) == [(1, 1)]
    assert bench.states == ["failed", "pending"]
    assert bench.core.state is ExperimentState.RUNNING


@pytest.mark.parametrize(("checkpoint", "again"), [(True, 1), (False, 3)])
def test_reports_that_a_retry_repeats_count_once_in_the_reason(checkpoint: bool, again: int) -> None:
    bench = Bench(limits={"max_concurrent_trials": 1, "max_failures": 1})
    bench.started(0)
    for _ in range(2):
        bench.reported(0, checkpoint=checkpoint)
    bench.ended(0, "failed", Failure(kind="user", message="no"))
    bench.started(0)
    for _ in range(again):
        bench.reported(0)
    bench.ended(0, "returned")
    assert bench.core.trials[0].reason == "the function returned after 3 reports"
    bench.started(1)
    bench.reported(1)
    bench.ended(1, "returned")
    assert bench.core.trials[1].reason == "the function returned after 1 report"


def test_a_failed_trial_is_no_error_of_a_search_in_which_others_came_through() -> None:
    bench = Bench(num_samples=2)
    bench.started(0)
    bench.reported(0)
    bench.ended(0, "returned")
    bench.started(1)
    bench.ended(1, "failed", Failure(kind="user", message="KeyError: 'width'", rank=1, node="n1"))
    assert bench.core.state is ExperimentState.COMPLETED
    assert bench.core.experiment.error is None
    assert bench.core.trials[1].reason == "trial 1, rank 1 on n1: KeyError: 'width'"


def test_a_warning_is_shown_once_also_after_a_restart() -> None:
    bench = Bench(num_samples=3)

    def ends_with_a_warning(number: int, bench: Bench) -> bool:
        bench.started(number)
        bench.reported(number)
        end = e.SegmentEnded(time=bench.tick(), trial=number, segment=1, outcome="returned", warning="uneven")
        (note,) = [entry for _, entry in bench.feed(end).log if isinstance(entry, d.Note)]
        assert (note.trial, note.reason) == (number, f"trial {number}: uneven")
        return note.warning

    assert ends_with_a_warning(0, bench)
    assert not ends_with_a_warning(1, bench.successor())
    assert not ends_with_a_warning(1, bench)
    assert bench.states[:2] == ["completed", "completed"]


def test_a_function_that_went_on_from_its_own_end_has_completed() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.reported(0, checkpoint=True)
    bench.command("pause")
    bench.reported(0, checkpoint=True)
    bench.ended(0, "left")
    bench.command("resume")
    bench.ended(0, "returned")
    trial = bench.core.trials[0]
    assert (trial.state, trial.failures) == (TrialState.COMPLETED, 0)
    assert (
        trial.reason == "the function returned at once: it continued from the checkpoint saved at its end, iteration 2"
    )


@pytest.mark.parametrize(
    "scheduler",
    [
        tuner.PopulationBasedTraining(perturbation_interval=5),
        tuner.PopulationBasedTraining(perturbation_interval=5, synch=True),
        tuner.ASHAPromotionScheduler(grace_period=5, reduction_factor=2),
        tuner.MedianStoppingRule(min_time_slice=3, min_samples_required=9),
    ],
)
def test_no_trial_of_a_function_with_an_end_fails(scheduler: Any) -> None:
    def evaluate(config: dict[str, Any], done: int | None) -> Any:
        for epoch in range(done or 0, 20):
            loss = abs(config["lr"] - 0.5) + 1 / (epoch + 1)
            yield tuner.Step(metrics={"loss": loss}, seconds=1 + config["lr"], checkpoint=epoch + 1)

    result = tuner.simulate(
        evaluate, {"lr": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=8, scheduler=scheduler
    )
    assert result.error is None
    assert {str(trial.state) for trial in result.trials} <= {"completed", "stopped"}


@pytest.mark.parametrize("scheduler", ["asha", "median"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_time_attribute_that_is_no_finite_number_fails_its_trial_in_words(scheduler: str, value: float) -> None:
    bench = Bench(time_attr="tokens", scheduler={"type": scheduler})
    bench.started(0)
    bench.reported(0, tokens=value)
    assert bench.states[0] == "failed"
    assert f"'tokens' must be a finite number, and this report has {value}" in bench.core.trials[0].reason


def test_a_report_without_the_time_attribute_fails_its_trial_in_words() -> None:
    bench = Bench(time_attr="tokens", max_t=9)
    bench.started(0)
    bench.reported(0, tokens=1.0)
    bench.reported(0)
    assert "the time attribute 'tokens' is not among the reported metrics: 'loss'" in bench.core.trials[0].reason


def test_the_time_attribute_may_come_with_the_last_of_several_objectives() -> None:
    bench = Bench(time_attr="tokens", max_t=9, objectives=(Objective("loss", "min"), Objective("speed", "max")))
    bench.started(0)
    state, trial = bench.core.experiment, bench.core.trials[0]
    assert unusable(state, trial, {"loss": 1.0}, last=False) is None
    bench.reported(0)
    assert bench.states[0] == "running"
    both = {"loss": 1.0, "speed": 2.0}
    assert "the time attribute 'tokens' is not among" in (unusable(state, trial, both, last=False) or "")
