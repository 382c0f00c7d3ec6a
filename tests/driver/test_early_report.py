"""Reports of ranks and the start of their group come to the driver on different ways: either may be first."""

from __future__ import annotations

import pytest

from tuner.domain import events as e
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.states import TrialState
from tuner.driver.assemble import assemble
from tuner.space import Space


@pytest.mark.parametrize("metrics", [{"loss": 1.0}, {"loss": float("nan")}])
def test_a_report_before_the_start_that_ends_the_trial(metrics: dict[str, float]) -> None:
    spec = Spec(
        name="early",
        space={},
        objectives=(Objective("loss", "min"),),
        search={"type": "random"},
        scheduler={"type": "fifo"},
        num_samples=1,
        max_t=1,
        limits=Limits(max_concurrent_trials=1),
    )
    core = assemble(spec, Space({}))
    core.handle(e.DriverStarted(time=0.0, epoch=1))
    core.handle(e.Reported(time=1.0, trial=0, segment=1, report_no=1, iteration=1, metrics=metrics))
    core.handle(e.SegmentStarted(time=2.0, trial=0, segment=1))
    core.handle(e.SegmentEnded(time=3.0, trial=0, segment=1, outcome="left"))
    assert core.trials[0].state in (TrialState.COMPLETED, TrialState.STOPPED)
    assert core.trials[0].iteration == 1
    assert core.ended
