"""Test how the core handles parameters that a running trial asks for, and the notes of a trial."""

from __future__ import annotations

from typing import Any

from optuna.distributions import FloatDistribution, distribution_to_json

from tuner.domain import events as e
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.states import TrialState
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.space import Space

X = distribution_to_json(FloatDistribution(0.0, 1.0))


def core() -> Core:
    spec = Spec(
        name="drawn",
        space={},
        objectives=(Objective("loss", "min"),),
        search={"type": "define_by_run"},
        scheduler={"type": "fifo"},
        num_samples=2,
        limits=Limits(max_concurrent_trials=1, max_failures=1),
    )
    return assemble(spec, Space({}))


class Bench:
    def __init__(self) -> None:
        self.core = core()
        self.log: list[Any] = []
        self.now = 0.0
        self.feed(e.DriverStarted, epoch=1)
        self.feed(e.SegmentStarted, trial=0, segment=1)

    def feed(self, kind: type[e.Event], **fields: Any) -> None:
        self.now += 1
        self.log += self.core.handle(kind(time=self.now, **fields)).log

    def draw(self, trial: int, segment: int, name: str) -> Any:
        """Draw a parameter as the driver host does."""
        value, state = self.core.searcher.draw(trial, name, X, self.core.trials)  # type: ignore[attr-defined]
        if name not in self.core.trials[trial].params:
            self.feed(e.Drawn, trial=trial, segment=segment, name=name, value=value, state=state)
        return value

    def folded(self) -> Core:
        other = core()
        for seq, entry in self.log:
            kind = entry.to_json()
            module = e if isinstance(entry, e.Event) else __import__("tuner.domain.decisions", fromlist=["d"])
            other.fold(seq, module.from_json(entry.KIND, kind))
        return other


def test_a_drawn_value_belongs_to_the_trial_and_outlives_the_driver() -> None:
    bench = Bench()
    value = bench.draw(0, 1, "x")
    assert bench.core.trials[0].params == {"x": value}
    assert bench.core.trials[0].segments[-1].params == {"x": value}
    assert bench.draw(0, 1, "x") == value, "for the other ranks"
    bench.feed(e.Noted, trial=0, segment=1, notes={"a": 1})
    bench.feed(e.Noted, trial=0, segment=1, notes={"b": [2]})
    again = bench.folded()
    for trial in (bench.core.trials[0], again.trials[0]):
        assert trial.params == {"x": value}
        assert trial.searcher_state["distributions"] == {"x": X}
        assert trial.tags["notes"] == {"a": 1, "b": [2]}


def test_a_retried_trial_is_given_the_same_value() -> None:
    bench = Bench()
    value = bench.draw(0, 1, "x")
    bench.feed(e.SegmentEnded, trial=0, segment=1, outcome="failed", failure=e.Failure(kind="user", message="broken"))
    assert [s.ordinal for s in bench.core.trials[0].segments] == [1, 2]
    bench.feed(e.SegmentStarted, trial=0, segment=2)
    assert bench.draw(0, 2, "x") == value
    assert bench.core.trials[0].segments[-1].params == {"x": value}


def test_what_comes_from_a_segment_that_is_over_changes_nothing() -> None:
    bench = Bench()
    bench.feed(e.Reported, trial=0, segment=1, report_no=1, iteration=1, metrics={"loss": 1.0})
    bench.feed(e.SegmentEnded, trial=0, segment=1, outcome="returned")
    assert bench.core.trials[0].state is TrialState.COMPLETED
    bench.feed(e.Drawn, trial=0, segment=1, name="late", value=1.0)
    bench.feed(e.Noted, trial=0, segment=1, notes={"late": 1})
    assert bench.core.trials[0].params == {}
    assert bench.core.trials[0].tags == {}
