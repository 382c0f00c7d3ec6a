"""Kill and fold between any two events changes no decision: for every scheduler, and for stoppers beside one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.schedulers.driving import Drive, state_of
from tests.schedulers.examples import SCHEDULERS
from tuner.domain.states import TrialState
from tuner.domain.trial import Trial
from tuner.schedulers import from_json

STOPPERS: dict[str, dict[str, Any]] = {
    "threshold": {"m": 0.95, "training_iteration": 6},
    "a metric that never comes": {"mm": 0.95, "training_iteration": 6},
    "plateau": {"type": "plateau", "std": 0.11, "num_results": 3, "grace_period": 3},
    "experiment plateau": {"type": "experiment_plateau", "std": 0.08, "top": 4, "patience": 3},
    "combined": {
        "type": "combined",
        "stoppers": [{"type": "iterations", "max_iter": 4}, {"type": "time", "seconds": 40}],
    },
}
CASES = [pytest.param(s, {}, id=name) for name, s in SCHEDULERS.items()] + [
    pytest.param({"type": "asha", "reduction_factor": 3}, s, id=f"stop: {name}") for name, s in STOPPERS.items()
]

BARE = st.sampled_from([0.0, 0.4])
"""The share of reports without the objective."""


def without_milestones(trial: Trial) -> Trial:
    """Leave milestones out of the comparison: ranks remember them, the log does not."""
    segments = [dataclasses.replace(s, milestone=None, decide_at=None, decided_at=0) for s in trial.segments]
    following = trial.next and dataclasses.replace(trial.next, milestone=None, decide_at=None, decided_at=0)
    numbers = {name: repr(getattr(trial, name)) for name in ("t", "last")}  # NaN is as good as NaN
    return dataclasses.replace(trial, segments=segments, next=following, **numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize(("scheduler", "stop"), CASES)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.reuse, Phase.generate))
@given(
    seed=st.integers(0, 10**6),
    num_samples=st.integers(2, 14),
    slots=st.integers(1, 5),
    mode=st.sampled_from(["min", "max"]),
    bare=BARE,
    data=st.data(),
)
def test_kill_and_fold_changes_no_decision(
    scheduler: dict[str, Any],
    stop: dict[str, Any],
    seed: int,
    num_samples: int,
    slots: int,
    mode: str,
    bare: float,
    data: st.DataObject,
) -> None:
    options: dict[str, Any] = {"num_samples": num_samples, "slots": slots, "mode": mode, "stop": stop, "bare": bare}
    drive = Drive(scheduler, seed, **options, stride=7).run()
    assert drive.core.ended, "the search came to no end"
    assert drive.count > 3
    for _ in range(min(4, len(drive.moments))):
        moment = drive.moments[data.draw(st.integers(0, len(drive.moments) - 1))]
        core = moment.restore(drive)
        assert state_of(core) == moment.state
        assert [without_milestones(t) for t in core.trials] == [without_milestones(t) for t in moment.trials]
        assert core.handle(moment.event).log == moment.outcome


@pytest.mark.parametrize(("scheduler", "stop"), CASES)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 10**6), num_samples=st.integers(2, 14), slots=st.integers(1, 5), bare=BARE, data=st.data())
def test_a_new_driver_brings_the_search_to_its_end(
    scheduler: dict[str, Any],
    stop: dict[str, Any],
    seed: int,
    num_samples: int,
    slots: int,
    bare: float,
    data: st.DataObject,
) -> None:
    """Whatever ran is lost and begins again from its newest checkpoint; nobody waits forever."""
    options: dict[str, Any] = {"num_samples": num_samples, "slots": slots, "stop": stop, "bare": bare}
    drive = Drive(scheduler, seed, **options, stride=5).run()
    if not drive.moments:
        return
    moment = drive.moments[data.draw(st.integers(0, len(drive.moments) - 1))]
    again = Drive(scheduler, seed + 1, **options)
    again.core, again.now = moment.restore(drive), 10_000.0
    again.run()
    assert again.core.ended
    assert len(again.core.trials) <= num_samples
    if scheduler["type"] not in ("fifo", "asha", "median"):
        return
    assert {trial.state for trial in again.core.trials} <= {TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED}


def test_the_end_does_not_wait_for_a_fit_that_can_change_nothing() -> None:
    """A new driver does not know of the fit: it would end the search where the old one waits."""
    options: dict[str, Any] = {"num_samples": 11, "slots": 2, "mode": "min", "stop": {}, "bare": 0.4}
    drive = Drive(SCHEDULERS["pb2"], 467, **options, stride=7).run()
    for moment in drive.moments:
        assert moment.restore(drive).handle(moment.event).log == moment.outcome


@pytest.mark.parametrize("options", SCHEDULERS.values(), ids=SCHEDULERS)
def test_json_builds_an_equal_scheduler(options: dict[str, Any]) -> None:
    data = json.loads(json.dumps(from_json(options).to_json()))
    assert data["type"] == options["type"]
    assert options.items() <= data.items()
    assert from_json(data).to_json() == from_json(options).to_json()
