"""Test which trial is the best: with its own configuration, within the constraints, and trained to its end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import tuner
from tests.driver.bench import Bench
from tuner.domain import events as e
from tuner.domain.decisions import Note
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState, SegmentState
from tuner.domain.trial import Trial
from tuner.driver.virtual import Simulation
from tuner.schedulers.base import Fact, TrialReported
from tuner.search import TPESearch

CONSTRAINED = {"search": {"type": "tpe", "constraints": {"size": {"max": 0.25}}}}


def searched(seed: int, **options: Any) -> Simulation:
    """Simulate PBT over a rate that is good for ten reports and too large afterwards."""

    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
        done = checkpoint or 0.0
        while True:
            done += 1
            loss = (done - 10) ** 2 * 0.01 + abs(config["lr"] - 0.3)
            yield tuner.Step(metrics={"loss": loss}, seconds=1 + config["lr"] / 10, checkpoint=done)

    return tuner.simulate(
        evaluate,
        {"lr": tuner.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_samples=6,
        max_t=30,
        scheduler=tuner.PopulationBasedTraining(perturbation_interval=5),
        max_concurrent_trials=6,
        seed=seed,
        **options,
    )


def held_at_its_best(found: Simulation, trial: Trial) -> dict[str, Any]:
    """Return the configuration of the segment that first reported the trial's best value, from the log."""
    for _, entry in found.log:
        if isinstance(entry, e.Reported) and entry.trial == trial.number and entry.metrics["loss"] == trial.best_value:
            return dict(trial.segments[entry.segment - 1].params)
    raise AssertionError("nobody reported it")


@pytest.mark.parametrize("seed", range(4))
def test_the_best_configuration_is_the_one_that_reached_the_best_value(seed: int) -> None:
    found = searched(seed)
    assert found.best_trial is not None
    held = held_at_its_best(found, found.best_trial)
    assert held != found.best_trial.params, "a later exploit has changed it"
    assert found.best_config == held


@pytest.mark.parametrize("scope", ["all", "last"])
def test_each_objective_has_its_own_best_trial(scope: str) -> None:
    objectives = (Objective("loss", "min"), Objective("speed", "max"))
    bench = Bench(
        scope=scope,
        objectives=objectives,
        limits={"max_concurrent_trials": 3},
        search={"type": "tpe", "constraints": {"size": {"max": 2}}},
    )
    for number in (0, 1, 2):
        bench.started(number)
    reports: list[tuple[int, dict[str, float]]] = [
        (0, {"loss": 0.1, "speed": 3.0, "size": 1}),
        (1, {"loss": 0.2, "speed": 9.0, "size": 1}),
        (2, {"loss": 0.01, "speed": 99.0, "size": 3}),
        (1, {"loss": 0.3, "speed": 5.0, "size": 1}),
        (0, {"loss": 0.4, "speed": math.nan, "size": 1}),
    ]
    for number, metrics in reports:
        bench.reported(number, metrics["loss"], **{k: v for k, v in metrics.items() if k != "loss"})
    best: Any = bench.core.summary()["best"]
    assert (
        best["objectives"]
        == {
            "all": [
                {"metric": "loss", "value": 0.1, "trial_number": 0},
                {"metric": "speed", "value": 9.0, "trial_number": 1},
            ],
            "last": [
                {"metric": "loss", "value": 0.3, "trial_number": 1},
                {"metric": "speed", "value": 5.0, "trial_number": 1},
            ],
        }[scope]
    ), "trial 2 does not satisfy the constraint"
    alone = Bench()
    alone.started(0)
    alone.reported(0, 0.1)
    assert "objectives" not in alone.core.summary()["best"]  # type: ignore[operator]


@pytest.mark.parametrize("scope", ["all", "last"])
def test_objectives_may_be_reported_apart(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second objective was compared only in reports that had the first one, too."""
    bench = Bench(scope=scope, objectives=(Objective("loss", "min"), Objective("speed", "max")))
    told: list[Fact] = []
    monkeypatch.setattr(bench.core.scheduler, "record", lambda fact, trials: told.append(fact))
    bench.started(0)
    reports = ({"loss": 0.5}, {"speed": 10.0}, {"loss": 0.4}, {"speed": 99.0}, {"loss": math.nan, "speed": 100.0})
    for count, metrics in enumerate(reports, 1):
        bench.feed(
            e.Reported(
                time=bench.tick(), trial=0, segment=1, report_no=count, iteration=count, metrics=metrics, waits=True
            )
        )
    best: Any = bench.core.summary()["best"]
    values = {each["metric"]: each["value"] for each in best["objectives"]}
    assert values["speed"] == 100.0
    assert scope == "last" or values["loss"] == 0.4
    assert not any(isinstance(fact, TrialReported) for fact in told), "a scheduler compares reports with all objectives"


@pytest.mark.parametrize("bound", [None, 0.5])
def test_with_scope_last_the_best_is_that_of_all_last_values_after_each_report(bound: float | None) -> None:
    """Also when the leader becomes worse, or the first value that counts does."""
    search = {"type": "tpe", "constraints": {"size": {"max": bound}}} if bound else {"type": "random"}
    bench = Bench(scope="last", num_samples=4, limits={"max_concurrent_trials": 4}, search=search)
    for number in range(4):
        bench.started(number)
    random, told = Random(5), None
    for _ in range(400):
        number = random.randrange(4)
        metrics = {"size": random.random()} if random.random() < 0.5 else {}
        out = bench.reported(number, random.choice([0.1, 0.2, 0.3, 0.4, 0.5, math.nan]), **metrics)
        counted = [
            (trial.last_value, trial.number)
            for trial in bench.core.trials
            if trial.last_value is not None and (bound is None or trial.last.get("size", 1.0) <= bound)
        ]
        best = bench.core.best_trial()
        assert (None if best is None else (best.last_value, best.number)) == min(counted, default=None)
        told = next((one["loss"] for one in out.best.values()), None if not counted else told)
        assert told == (min(counted)[0] if counted else None), "the best value so far is told when it changes"


def test_each_objective_counts_only_after_the_constraints_are_known_to_hold() -> None:
    bench = Bench(
        objectives=(Objective("loss", "min"), Objective("speed", "max")),
        search={"type": "tpe", "constraints": {"size": {"max": 2}}},
    )
    bench.started(0)
    improved = []
    reports = ({"speed": 9.0}, {"loss": 0.5}, {"size": 1.0}, {"speed": 99.0, "size": 3.0}, {"size": 1.0})
    for count, metrics in enumerate(reports, 1):
        out = bench.feed(
            e.Reported(
                time=bench.tick(), trial=0, segment=1, report_no=count, iteration=count, metrics=metrics, waits=True
            )
        )
        improved.append(list(out.best.values()))
    assert improved == [[], [], [{"loss": 0.5, "speed": 9.0}], [], [{"speed": 99.0}]]


def last_params(bench: Bench) -> Any:
    best: Any = bench.core.summary()["best"]
    return best["params"]


def exploit(bench: Bench) -> None:
    """Let trial 0 report its best value and then exploit another trial."""
    bench.started(0)
    bench.reported(0, 0.1)
    bench.core.trials[0].segments.append(
        type(bench.core.trials[0].segments[0])(2, "exploit", {"x": 0.9}, 1, None, SegmentState.LAUNCHING)
    )
    bench.core.trials[0].params = {"x": 0.9}


def test_with_scope_last_it_is_the_configuration_of_the_last_value() -> None:
    for scope, now in (("all", False), ("last", True)):
        bench = Bench(scope=scope)
        exploit(bench)
        bench.reported(0, 0.2)
        assert (last_params(bench) == {"x": 0.9}) is now


def test_only_reports_within_the_constraints_count() -> None:
    bench = Bench(**CONSTRAINED)
    bench.started(0)
    bench.started(1)
    bench.reported(0, 0.1, size=1.0, checkpoint=True)
    assert bench.core.best_trial() is None
    assert bench.core.summary()["best"] == {
        "why": "no trial satisfies the constraints (size at most 0.25): the nearest one, trial 0, has size = 1"
    }
    bench.reported(1, 0.5, size=0.2, checkpoint=True)
    bench.reported(1, 0.4, size=0.3, checkpoint=True)
    bench.reported(0, 0.7, size=0.2, checkpoint=True)
    best: Any = bench.core.summary()["best"]
    assert (best["trial_number"], best["value"], best["iteration"]) == (1, 0.5, 1)
    assert best["checkpoint_id"] == "ckp_1_1_1", "the checkpoint of the report that counts"
    assert [trial.feasible for trial in bench.core.trials][:2] == [True, True]
    assert bench.core.trials[0].best_value == 0.1, "searchers learn from all reports"
    assert bench.successor().core.summary() == bench.core.summary()


@pytest.mark.parametrize(
    ("metric", "hint"),
    [("siz", "did you mean 'size'?"), ("x", "'x' is a parameter: report it as a metric too")],
)
def test_a_constraint_on_a_metric_that_nobody_reports_is_warned_of_once(metric: str, hint: str) -> None:
    bench = Bench(search={"type": "tpe", "constraints": {metric: {"max": 0.25}}})
    bench.started(0)
    bench.reported(0, 0.5, size=0.2)
    bench.reported(0, 0.4, size=0.2)
    warnings = [entry.reason for _, entry in bench.log if isinstance(entry, Note) and entry.warning]
    known = f"a constraint is about '{metric}', which is not among the reported metrics: 'loss', 'size'"
    assert warnings == [f"{known} (no trial counts as the best one until the metric is reported); {hint}"]


def test_with_scope_last_the_last_report_must_keep_within_the_constraints() -> None:
    bench = Bench(scope="last", **CONSTRAINED)
    bench.started(0)
    bench.reported(0, 0.5, size=0.2)
    assert bench.core.best_trial() is bench.core.trials[0]
    bench.reported(0, 0.1, size=0.3)
    assert bench.core.best_trial() is None
    assert bench.core.trials[0].feasible is False


def test_a_constraint_may_be_reported_at_another_report_than_the_objective() -> None:
    bench = Bench(**CONSTRAINED)
    bench.started(0)
    bench.reported(0, 0.5)
    assert "has not reported 'size'" in str(bench.core.summary()["best"])
    segment = bench.core.trials[0].segments[-1]
    bench.feed(e.Reported(time=bench.tick(), trial=0, segment=1, report_no=2, iteration=2, metrics={"size": 0.1}))
    assert segment.report_no == 2
    best: Any = bench.core.summary()["best"]
    assert (best["value"], best["iteration"]) == (0.5, 1)


def test_the_best_finished_trial_has_the_best_last_value_of_those_that_came_to_their_end() -> None:
    bench = Bench(max_t=2, limits={"max_concurrent_trials": 3})
    for number in range(3):
        bench.started(number)
    bench.reported(0, 0.1)
    bench.reported(0, 0.6)
    bench.reported(1, 0.4)
    bench.reported(1, 0.5)
    bench.reported(2, 0.05)
    best: Any = bench.core.summary()["best"]
    assert (best["trial_number"], best["value"]) == (2, 0.05)
    assert (best["finished"]["trial_number"], best["finished"]["value"], best["finished"]["iteration"]) == (1, 0.5, 2)
    assert bench.successor().core.summary() == bench.core.summary()


def test_a_report_after_the_end_may_make_another_trial_the_best_finished_one() -> None:
    bench = Bench(max_t=2, limits={"max_concurrent_trials": 3})
    for number, loss in ((0, 0.1), (1, 0.2), (2, 0.2)):
        bench.started(number)
        bench.reported(number, loss, waits=False)
        bench.reported(number, loss, waits=False)
    for late, finished in ((0.9, 1), (0.15, 0), (math.nan, 1)):
        bench.reported(0, late, waits=False)
        best: Any = bench.core.summary()["best"]
        assert best["finished"]["trial_number"] == finished
    assert bench.successor().core.summary() == bench.core.summary()


def test_a_nan_decides_with_its_constraints_whether_the_last_value_counts() -> None:
    search = {"type": "tpe", "constraints": {"size": {"max": 100}}}
    bench = Bench(max_t=9, scope="last", search=search)
    bench.started(0)
    bench.reported(0, 1.0, size=200.0)
    assert bench.core.summary()["best"] is not None
    assert bench.core.best_trial() is None
    bench.reported(0, math.nan, size=50.0)
    best: Any = bench.core.summary()["best"]
    assert (best["trial_number"], best["value"]) == (0, 1.0)
    bench.reported(0, math.nan, size=200.0)
    assert bench.core.best_trial() is None
    assert bench.core.trials[0].feasible is False


def test_nothing_is_finished_where_every_trial_was_stopped_early() -> None:
    bench = Bench(max_t=9)
    bench.started(0)
    bench.reported(0, 0.1)
    best: Any = bench.core.summary()["best"]
    assert best["finished"] is None


def nothing_but(value: float, **options: Any) -> Simulation:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
        while True:
            yield tuner.Step(metrics={"loss": value, "size": 0.3 + config["x"]})

    space = {"x": tuner.uniform(0, 1)}
    return tuner.simulate(evaluate, space, metric="loss", mode="min", num_samples=4, max_t=3, **options)


def test_a_search_of_nothing_but_nan_says_so() -> None:
    found = nothing_but(math.nan, scheduler="fifo")
    assert (found.state, found.best_trial) == (ExperimentState.COMPLETED, None)
    assert found.error == "no trial reported a finite 'loss': 4 trials reported NaN or infinity, first at iteration 1"


def test_a_search_that_ends_before_the_first_report_says_that_none_was_made() -> None:
    found = nothing_but(1.0, scheduler="fifo", time_budget_s=0.5)
    assert (found.state, found.best_trial) == (ExperimentState.COMPLETED, None)
    assert found.error == "no trial reported 'loss'"


def test_a_search_that_keeps_within_no_constraint_says_so() -> None:
    found = nothing_but(1.0, scheduler="fifo", search_alg=TPESearch(constraints={"size": {"max": 0.25}}))
    assert (found.best_trial, found.best_value, found.best_config, found.best_finished) == (None, None, None, None)
    assert found.error is not None
    assert found.error.startswith("no trial satisfies the constraints (size at most 0.25): the nearest one, trial ")
