"""Commands that change an experiment for good: kill, continue, and changes of num_samples and limits."""

from __future__ import annotations

from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench, launches
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.states import ExperimentState
from tuner.driver.core import Effects
from tuner.driver.core.actions import Interrupt


def amended(bench: Bench, **changes: Any) -> Effects:
    return bench.feed(e.Amended(time=bench.tick(), changes=changes, reason="a user changed it"))


def finished(bench: Bench) -> None:
    """Let every trial run to its end, one report each."""
    while running := [t.number for t in bench.core.trials if t.holds_resources]:
        for number in running:
            bench.started(number)
            bench.reported(number, loss=1.0 / (number + 1))
            bench.ended(number, "returned")


def test_kill_ends_the_groups_at_once_and_all_trials() -> None:
    bench = Bench()
    bench.started(0)
    out = bench.command("kill")
    kills = [action.segment.trial for action in out.actions if isinstance(action, Interrupt) and action.why == "kill"]
    assert kills == [0, 1]
    assert bench.states == ["cancelled", "cancelled"]
    assert bench.core.state is ExperimentState.CANCELLING
    bench.ended(0)
    bench.ended(1)
    assert bench.core.state is ExperimentState.CANCELLED


def test_a_trial_is_killed_at_once_and_the_others_go_on() -> None:
    bench = Bench()
    bench.started(0)
    bench.started(1)
    bench.reported(0, loss=0.5)
    out = bench.command("kill", trial=0)
    kills = [action.segment.trial for action in out.actions if isinstance(action, Interrupt) and action.why == "kill"]
    assert kills == [0]
    assert bench.states[:2] == ["cancelled", "running"]
    assert bench.core.trials[0].reason == "killed by a user"
    bench.ended(0)
    assert bench.core.state is ExperimentState.RUNNING
    again = bench.successor()
    assert again.states == bench.states


def test_kill_hurries_up_a_cancel() -> None:
    bench = Bench()
    bench.started(0)
    assert all(a.why == "stop" for a in bench.command("cancel").actions if isinstance(a, Interrupt))
    out = bench.command("kill")
    assert [a.segment.trial for a in out.actions if isinstance(a, Interrupt) and a.why == "kill"] == [0, 1]
    bench.ended(0)
    bench.ended(1)
    assert bench.core.state is ExperimentState.CANCELLED


def test_an_ended_experiment_goes_on_with_more_samples_and_a_fold_agrees() -> None:
    bench = Bench(num_samples=2)
    finished(bench)
    assert bench.core.state is ExperimentState.COMPLETED
    later = bench.successor()
    later.feed(e.DriverStarted(time=later.tick(), epoch=2))
    assert later.core.ended
    amended(later, num_samples=4)
    out = later.command("continue")
    assert launches(out) == [(2, 1), (3, 1)]
    assert later.core.state is ExperimentState.RUNNING
    finished(later)
    assert later.core.state is ExperimentState.COMPLETED
    assert later.states == ["completed"] * 4
    third = later.successor()
    assert third.core.summary() == later.core.summary()
    assert third.core.spec == later.core.spec
    assert third.core.spec.num_samples == 4
    assert third.core.scheduler.context == later.core.scheduler.context
    assert [t.params for t in third.core.trials] == [t.params for t in later.core.trials]


def test_a_failed_experiment_goes_on_without_its_error() -> None:
    bench = Bench(num_samples=1)
    bench.started(0)
    bench.ended(0, "failed", e.Failure(kind="user", message="ValueError: no", cause="exception"))
    assert bench.core.state is ExperimentState.FAILED
    assert bench.core.summary()["error"]
    amended(bench, num_samples=2)
    bench.command("continue")
    assert bench.core.summary()["error"] is None
    finished(bench)
    assert bench.core.state is ExperimentState.COMPLETED


@pytest.mark.parametrize("search", [{"type": "random"}, {"type": "grid"}])
def test_more_samples_of_a_grid_run_it_again(search: dict[str, Any]) -> None:
    bench = Bench(num_samples=1, search=search, space={"x": tuner.grid_search([1, 2, 3])})
    finished(bench)
    assert len(bench.states) == 3
    amended(bench, num_samples=2)
    bench.command("continue")
    finished(bench)
    assert [t.params["x"] for t in bench.core.trials] == [1, 2, 3, 1, 2, 3]


def test_changes_take_effect_while_it_runs() -> None:
    bench = Bench(num_samples=5, limits={"max_concurrent_trials": 1})
    assert launches(amended(bench, limits={"max_concurrent_trials": 3})) == [(1, 1), (2, 1)]
    assert not launches(amended(bench, num_samples=3))
    notes = [entry.reason for _, entry in bench.log if isinstance(entry, d.Note)]
    assert notes == ["a user changed it"] * 2
    finished(bench)
    assert len(bench.states) == 3
    assert bench.successor().core.spec.limits.max_concurrent_trials == 3


def test_freeze_thaw_takes_a_larger_number_as_a_larger_budget() -> None:
    bench = Bench(num_samples=20, max_t=9, scheduler={"type": "freeze_thaw"})
    before = bench.core.scheduler.resolved()["budget"]
    amended(bench, num_samples=60)
    assert bench.core.scheduler.resolved()["budget"] == 3 * before


def test_added_trials_run_although_the_budget_derived_from_num_samples_is_spent() -> None:
    bench = Bench(num_samples=8, max_t=1, scheduler={"type": "freeze_thaw"})
    finished(bench)
    first = len(bench.states)
    assert bench.core.state is ExperimentState.COMPLETED
    assert first < 8, "the budget was spent before"
    amended(bench, num_samples=12)
    assert launches(bench.command("continue"))
    finished(bench)
    assert len(bench.states) >= first + 3, "four more trials have a budget of three full trainings"
    again = bench.successor().core.scheduler
    assert again.state == bench.core.scheduler.state
    assert again.resolved() == bench.core.scheduler.resolved()


def test_a_budget_of_the_users_own_stays_when_trials_are_added() -> None:
    bench = Bench(num_samples=8, max_t=1, scheduler={"type": "freeze_thaw", "budget": 2})
    finished(bench)
    amended(bench, num_samples=12)
    assert not launches(bench.command("continue"))
    assert bench.core.scheduler.resolved()["budget"] == 2
