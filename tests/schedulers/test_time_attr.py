"""Schedulers that count in something other than reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.schedulers.driving import SPACE
from tuner.domain.decisions import Stop
from tuner.domain.states import TrialState
from tuner.driver.virtual import Step, simulate
from tuner.errors import SpecError
from tuner.schedulers import ASHAScheduler, MedianStoppingRule, PopulationBasedTraining


def train(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Four reports an epoch."""
    for step in range((checkpoint or 0) + 1, 1000):
        yield Step(metrics={"m": config["lr"], "epoch": step / 4}, seconds=2.5, checkpoint=step)


@pytest.mark.parametrize(
    ("scheduler", "unit"),
    [
        (ASHAScheduler(max_t=9, reduction_factor=3, time_attr="epoch"), 4),
        (ASHAScheduler(max_t=22.5, grace_period=2.5, reduction_factor=3, time_attr="time_total_s"), 0.4),
    ],
)
def test_asha_counts_in_what_it_is_told(scheduler: ASHAScheduler, unit: float) -> None:
    run = simulate(train, SPACE, metric="m", mode="max", num_samples=30, scheduler=scheduler, search_alg="random")
    assert {trial.state for trial in run.trials} == {TrialState.STOPPED, TrialState.COMPLETED}
    grace, most = scheduler.grace_period * unit, (scheduler.max_t or 0) * unit
    at = {grace, 3 * grace, 9 * grace} - {most}
    assert {t.iteration for t in run.trials if t.state is TrialState.STOPPED} <= at
    assert {t.iteration for t in run.trials if t.state is TrialState.COMPLETED} == {most}
    assert any(f"stopped at {scheduler.time_attr}" in d.reason for d in run.decisions if isinstance(d, Stop))


@pytest.mark.parametrize(
    "scheduler", [MedianStoppingRule(time_attr="epoch"), PopulationBasedTraining(2, time_attr="epoch")]
)
def test_others_count_so_too(scheduler: Any) -> None:
    run = simulate(
        train, SPACE, metric="m", mode="max", num_samples=8, scheduler=scheduler, search_alg="random", max_t=9
    )
    assert max(t.iteration for t in run.trials) == 36
    assert any("at epoch" in d.reason for d in run.decisions)


def test_a_time_that_never_comes_is_an_error_that_names_what_came() -> None:
    run = simulate(
        train,
        SPACE,
        metric="m",
        mode="max",
        num_samples=2,
        scheduler=ASHAScheduler(time_attr="epochs"),
        search_alg="random",
    )
    assert {trial.state for trial in run.trials} == {TrialState.FAILED, TrialState.STOPPED}
    assert [row[2] for row in run.history] == [1] * 2, "the first report tells it for all"
    lacking = "the time attribute 'epochs' is not among the reported metrics: 'epoch', 'm'; did you mean 'epoch'?"
    assert lacking in run.trials[0].reason


def test_two_different_ones_are_refused() -> None:
    with pytest.raises(SpecError, match="the experiment's time_attr is 'epoch', not 'time_total_s'"):
        simulate(
            train,
            SPACE,
            metric="m",
            mode="max",
            num_samples=2,
            time_attr="epoch",
            scheduler=ASHAScheduler(time_attr="time_total_s"),
        )
