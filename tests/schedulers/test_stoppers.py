"""Stoppers against Ray Tune's on the same streams, and in whole searches."""

from __future__ import annotations

import json
import math
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedulers.driving import SPACE, Drive, context
from tests.schedulers.oracles import ray_stoppers
from tuner.domain.decisions import Note
from tuner.domain.events import Reported
from tuner.domain.experiment import Objective
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Population, Trial
from tuner.driver.virtual import Step, simulate
from tuner.errors import SpecError
from tuner.schedulers.base import TrialEnded, TrialReported
from tuner.schedulers.from_ray import UsersStopper
from tuner.schedulers.functions import NamedFunction, Unloaded
from tuner.schedulers.stoppers import (
    ExpectedImprovementStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    Stopper,
    ThresholdStopper,
    TimeStopper,
    TrialPlateauStopper,
    from_argument,
    from_json,
)
from tuner.space import Space, grid_search, uniform


class Fed:
    """A stopper that is told one report after the other."""

    def __init__(self, stopper: Stopper, **options: Any) -> None:
        stopper.setup(context(**options))
        self.stopper = stopper
        self.trials = Population()

    def report(self, number: int, iteration: int, time: float = 0.0, **metrics: float) -> str | None:
        if number not in self.trials:
            self.trials.add(Trial(number, {}, state=TrialState.RUNNING))
        trial = self.trials[number]
        trial.iteration, trial.t, trial.last = iteration, float(iteration), metrics
        trial.running_s = time
        score = self.stopper.context.objective.score(metrics.get("m", 0.0))
        fact = TrialReported(
            trial=number,
            iteration=iteration,
            t=float(iteration),
            score=score,
            metrics=metrics,
            time=time,
            running_s=time,
        )
        self.stopper.record(fact, self.trials)
        return self.stopper.decide(number, self.trials)


@given(
    seed=st.integers(0, 10**6),
    std=st.sampled_from([0.02, 0.1, 0.3]),
    num_results=st.integers(2, 6),
    grace=st.integers(1, 6),
    threshold=st.sampled_from([None, 0.5]),
    mode=st.sampled_from(["min", "max"]),
)
def test_trial_plateau_is_rays(
    seed: int, std: float, num_results: int, grace: int, threshold: float | None, mode: str
) -> None:
    rng = random.Random(seed)
    theirs = ray_stoppers.TrialPlateauStopper("m", std, num_results, grace, threshold, mode)
    ours = Fed(TrialPlateauStopper("m", std, num_results, grace, threshold, mode))  # type: ignore[arg-type]
    for iteration in range(1, 40):
        for number in range(3):
            value = rng.choice([0.4, 0.5, 0.6]) + rng.random() * 0.1
            assert bool(ours.report(number, iteration, m=value)) == bool(theirs(str(number), {"m": value}))


@given(
    seed=st.integers(0, 10**6),
    std=st.sampled_from([0.01, 0.05]),
    top=st.integers(2, 8),
    patience=st.integers(0, 4),
    mode=st.sampled_from(["min", "max"]),
)
def test_experiment_plateau_is_rays(seed: int, std: float, top: int, patience: int, mode: str) -> None:
    rng = random.Random(seed)
    theirs = ray_stoppers.ExperimentPlateauStopper("m", std, top, mode, patience)
    ours = Fed(ExperimentPlateauStopper("m", std, top, mode, patience))  # type: ignore[arg-type]
    for iteration in range(1, 60):
        value = rng.random()
        ours.report(iteration % 5, iteration, m=value)
        assert bool(ours.stopper.finished(ours.trials)) == bool(theirs(str(iteration % 5), {"m": value}))


def test_a_threshold_is_reached_from_below_as_in_ray() -> None:
    ours = Fed(ThresholdStopper({"accuracy": 0.9, "training_iteration": 3, "time_total_s": 50}))
    assert ours.report(3, 1, time=60.0, time_total_s=5.0) is None, "what the user reports by this name counts"
    assert ours.report(0, 1, accuracy=0.89) is None
    assert ours.report(0, 2, accuracy=0.9) == "completed at iteration 2: accuracy is 0.9, at or above 0.9"
    assert ours.report(1, 3, loss=0.1) == "completed at iteration 3: training_iteration is 3, at or above 3"
    assert ours.report(2, 1, loss=0.1) is None


def test_an_iteration_limit_asks_for_nothing_before_it() -> None:
    trial = Trial(0, {})
    for stopper in (MaximumIterationStopper(27), ThresholdStopper({"training_iteration": 27})):
        stopper.setup(context())
        assert stopper.milestone(trial) == 27
        assert (stopper.milestone(Trial(0, {}, t=27.0)) or 0) > 27, "a milestone is ahead of the trial"
        stopper.setup(context(time_attr="step"))  # whose value at the 27th report is not known
        assert 0 < (stopper.milestone(trial) or 0) < 1e-300
    for limit, asks in ((TimeStopper(60), False), (TimeStopper(60, per_trial=True), True)):
        assert (limit.milestone(trial) is not None) == asks
    for several in (ThresholdStopper({"training_iteration": 27, "accuracy": 0.5}), ThresholdStopper({"accuracy": 27})):
        several.setup(context())
        assert (several.milestone(trial) or 1) < 1e-300
    either = from_argument([{"training_iteration": 27}, {"accuracy": 0.5}])
    assert either is not None
    either.setup(context())
    milestone = either.milestone(trial)
    assert milestone is not None
    assert 0 < milestone < 1e-300


@pytest.mark.parametrize("kind", ["plateau", "experiment_plateau"])
@pytest.mark.parametrize("values", [(1e300, -1e300, 5.0), (1.7e308, 1.7e308, 1.6e308), (1e200, 2.0, 3.0)])
def test_a_plateau_of_huge_values(kind: str, values: tuple[float, ...]) -> None:
    reports = [Step({"m": value}, seconds=1.0) for value in (*values, *[1.0] * 5)]
    stop = {"type": kind} | ({"top": 3} if kind == "experiment_plateau" else {"num_results": 3, "grace_period": 0})
    done = simulate(
        lambda config, checkpoint: iter(reports),
        SPACE,
        metric="m",
        mode="max",
        num_samples=1,
        scheduler="fifo",
        stop=stop,
    )
    assert (done.state, done.error) == (ExperimentState.COMPLETED, None)
    assert len(done.history) == (
        6 if kind == "plateau" else len(reports)
    )  # the last three are the first without a change


def test_a_retried_report_replaces_the_first_in_a_plateau() -> None:
    ours = Fed(TrialPlateauStopper(std=0.01, num_results=3, grace_period=0))
    for iteration, value in [(1, 0.5), (2, 0.9), (2, 0.5)]:
        assert ours.report(0, iteration, m=value) is None
    assert ours.report(0, 3, m=0.5)
    ours.stopper.record(TrialEnded(trial=0, state=TrialState.COMPLETED), ours.trials)
    assert ours.stopper.state == TrialPlateauStopper.State(), "nothing is kept of a trial that has ended"


def test_the_limits_of_plateaus_are_those_of_their_docs() -> None:
    below = Fed(TrialPlateauStopper(std=0.5, num_results=2, grace_period=0, metric_threshold=1.0))
    assert [bool(below.report(0, n, m=value)) for n, value in ((1, 0.0), (2, 1.0), (3, 1.0))] == [False, False, True]
    most = Fed(ExperimentPlateauStopper(std=0.5, top=2))
    for n, value in ((1, 0.0), (2, math.inf), (3, 1.0)):
        assert not most.stopper.finished(most.trials)
        most.report(0, n, m=value)
    assert most.stopper.finished(most.trials)
    diverged = Fed(TrialPlateauStopper("train", num_results=2, grace_period=0))
    assert [diverged.report(0, n, m=0.5, train=math.inf) for n in (1, 2, 3)] == [None] * 3


def test_time() -> None:
    search = Fed(TimeStopper(60))
    assert search.report(0, 1, time=10.0, m=1.0) is None
    assert search.stopper.finished(search.trials) is None
    search.trials[0].running_s = 59.0
    search.report(0, 2, time=61.0, m=1.0)
    assert search.stopper.finished(search.trials) == "the search has run for 61 s, and the limit is 60 s"
    assert search.report(0, 3, time=60.5, m=1.0) is None, "it ends the search, not the trial"
    search.report(1, 1, time=5.0, m=1.0)
    assert search.stopper.finished(search.trials), "a report that comes late takes no time back"
    trial = Fed(TimeStopper(60, per_trial=True))
    assert trial.report(0, 1, time=59.0, m=1.0) is None
    assert (
        trial.report(0, 2, time=61.0, m=1.0) == "completed at iteration 2: it has run for 61 s, and the limit is 60 s"
    )
    assert trial.report(1, 1, time=60.0, m=1.0)
    assert trial.stopper.finished(trial.trials) is None, "it ends trials, not the search"


def climb(config: dict[str, Any], checkpoint: Any) -> Any:
    for step in range(1, 100):
        yield Step(metrics={"m": min(step / 10, 0.8)}, seconds=2.0)


@pytest.mark.parametrize(
    ("stop", "iterations", "says"),
    [
        ({"training_iteration": 7}, 7, "at or above 7"),
        ({"m": 0.5}, 5, "m is 0.5, at or above 0.5"),
        ({"time_total_s": 9.0}, 5, "time_total_s is 10"),
        ({"type": "iterations", "max_iter": 4}, 4, "the limit is 4 iterations"),
        ({"type": "plateau", "num_results": 3}, 10, "m no longer changes"),
        (lambda number, metrics: metrics["m"] > 0.55, 6, "returned true"),
        ([{"m": 2.0}, {"training_iteration": 3}], 3, "at or above 3"),
        (ray_stoppers.MaximumIterationStopper(6), 6, "the limit is 6"),
        (
            ray_stoppers.CombinedStopper(
                ray_stoppers.TrialPlateauStopper("m"), ray_stoppers.MaximumIterationStopper(30)
            ),
            11,
            "no longer changes",
        ),
    ],
)
def test_trials_end_where_they_should(stop: Any, iterations: int, says: str) -> None:
    run = simulate(
        climb, SPACE, metric="m", mode="max", num_samples=3, scheduler="fifo", search_alg="random", stop=stop
    )
    assert [trial.iteration for trial in run.trials] == [iterations] * 3
    assert all(trial.state is TrialState.COMPLETED and says in trial.reason for trial in run.trials)


@pytest.mark.filterwarnings("ignore:stop uses:UserWarning")
@pytest.mark.parametrize(
    ("stop", "name"),
    [
        ({"mm": 0.5}, "mm"),
        ({"type": "plateau", "metric": "mm"}, "mm"),
        ({"type": "experiment_plateau", "metric": "mm"}, "mm"),
        ([{"training_iteration": 90, "time_total_s": 1e9, "m": 2.0}, {"mm": 2.0}], "mm"),
    ],
)
def test_a_metric_that_never_comes_is_said_once_at_the_first_report_and_at_the_end(stop: Any, name: str) -> None:
    run = simulate(
        climb, SPACE, metric="m", mode="max", num_samples=3, scheduler="fifo", search_alg="random", stop=stop
    )
    notes = [(seq, entry) for seq, entry in run.log if isinstance(entry, Note)]
    first = next(seq for seq, entry in run.log if isinstance(entry, Reported))
    what = f"stop uses '{name}', which is not among the reported metrics: 'm'"
    until = "(the criterion has no effect until the metric is reported); did you mean 'm'?"
    assert [(seq, note.reason) for seq, note in notes] == [(first + 1, f"{what} {until}")]
    finish: Any = run.decisions[-1]
    assert finish.reason == f"all 3 trials ended; no report had '{name}', which stop uses"


@pytest.mark.filterwarnings("ignore:stop uses:UserWarning")
def test_a_metric_that_comes_later_ends_trials_when_it_comes() -> None:
    def seldom(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(1, 20):
            yield Step(metrics={"m": step / 10, **({"validated": 1.0} if step % 5 == 0 else {})})

    options: dict[str, Any] = {
        "metric": "m",
        "mode": "max",
        "num_samples": 3,
        "scheduler": "fifo",
        "search_alg": "random",
    }
    run = simulate(seldom, SPACE, stop={"validated": 1.0}, **options)
    assert [trial.iteration for trial in run.trials] == [5, 5, 5]
    finish: Any = run.decisions[-1]
    assert finish.reason == "all 3 trials ended"
    assert sum(isinstance(entry, Note) for entry in run.decisions) == 1


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        (lambda number, metrics: metrics["mm"] > 1, "KeyError: 'mm'; the metrics were 'm'; did you mean 'm'?"),
        (
            [{"training_iteration": 90}, lambda number, metrics: 1 / 0],
            "ZeroDivisionError: division by zero; the metrics",
        ),
    ],
)
def test_a_function_that_raises_ends_the_experiment_in_words(stop: Any, says: str) -> None:
    options: dict[str, Any] = {
        "metric": "m",
        "mode": "max",
        "num_samples": 3,
        "scheduler": "fifo",
        "search_alg": "random",
    }
    run = simulate(climb, SPACE, stop=stop, **options)
    assert run.state is ExperimentState.FAILED
    assert run.error is not None
    assert run.error.startswith(f"trial 0: stop raised {says}")
    assert [str(trial.state) for trial in run.trials] == ["failed", "stopped", "stopped"]
    failure = run.trials[0].failure
    assert failure is not None
    assert failure.kind == "spec"
    assert "test_stoppers.py" in failure.traceback


def test_nothing_is_said_where_all_metrics_come() -> None:
    options: dict[str, Any] = {
        "metric": "m",
        "mode": "max",
        "num_samples": 3,
        "scheduler": "fifo",
        "search_alg": "random",
    }
    run = simulate(climb, SPACE, stop={"m": 0.5, "training_iteration": 90}, **options)
    assert not any(isinstance(entry, Note) for entry in run.decisions)


def test_a_search_ends_when_its_best_values_no_longer_move() -> None:
    drive = Drive(
        {"type": "fifo"},
        0,
        num_samples=40,
        max_t=5,
        trouble=0,
        stop={"type": "experiment_plateau", "top": 5, "std": 0.05},
    ).run()
    assert drive.core.ended
    assert len(drive.core.trials) < 40
    finish: Any = next(entry for entry in drive.decisions() if entry.KIND == "finish")
    assert finish.reason.startswith("m no longer improves: the standard deviation of the 5 best values is")


def good_enough(number: int, metrics: dict[str, float]) -> bool:
    return metrics["m"] > 0.7


def abs_is_small(number: int, metrics: dict[str, float]) -> bool:
    return abs(metrics["m"]) < 0.1


def test_json() -> None:
    for data in (
        {"m": 0.5, "loss": 3},
        {"type": "plateau", "std": 0.2},
        {"type": "time", "seconds": 5},
        {"type": "combined", "stoppers": [{"m": 1}, {"type": "experiment_plateau", "top": 3}]},
        {"type": "function", "function": f"{__name__}:good_enough"},
    ):
        stopper = from_json(data)
        assert stopper is not None
        form = json.loads(json.dumps(stopper.to_json()))
        again = from_json(form)
        assert again is not None
        assert again.to_json() == form
    assert from_json({}) is None
    assert isinstance(from_json({"type": 3}), ThresholdStopper), "a metric may be called type"
    assert FunctionStopper(good_enough).to_json()["function"].endswith(":good_enough")


@pytest.mark.parametrize(
    ("data", "pointer", "says"),
    [
        ({"accuracy": "high"}, "/stop/accuracy", "expected a number, got str 'high'"),
        ({"type": "threshold", "thresholds": {}}, "/stop/thresholds", "expected metrics with their values"),
        ({"type": "plateau", "num_results": 1}, "/stop/num_results", "at least 2"),
        ({"type": "experiment_plateau", "patience": -1}, "/stop/patience", "at least 0"),
        ({"type": "combined", "stoppers": []}, "/stop/stoppers", "expected a list of stoppers"),
        ({"type": "combined", "stoppers": {"m": 1}}, "/stop/stoppers", "expected a list of stoppers"),
        ({"type": "platau"}, "/stop/type", "did you mean plateau?"),
        ({"type": "plateau", "std": 0}, "/stop/std", "above 0"),
        ({"type": "plateau", "num_result": 3}, "/stop/num_result", "did you mean num_results?"),
        ({"type": "plateau", "mode": "big"}, "/stop/mode", 'expected "min" or "max"'),
        (
            {"type": "combined", "stoppers": [{"m": 1}, {"type": "time", "seconds": -1}]},
            "/stop/stoppers/1/seconds",
            "above 0",
        ),
        ({"type": "iterations"}, "/stop/max_iter", "needed"),
        ({"type": "function", "function": "os:nothing"}, "/stop/function", "cannot be imported"),
    ],
)
def test_bad_json_says_where_and_what(data: dict[str, Any], pointer: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_json(data)
    assert caught.value.errors[0][0] == pointer
    assert says in caught.value.errors[0][1]


class Patient(ray_stoppers.Stopper):  # type: ignore[misc]
    """Ends a trial at its third report in a row without a new best value, and the search when `enough` is reached."""

    def __init__(self, enough: float = 9.0) -> None:
        self.enough, self.best, self.idle, self.over = enough, -1.0, dict[str, int](), False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        better = result["m"] > self.best
        self.best = max(self.best, result["m"])
        self.over = self.over or self.best >= self.enough
        self.idle[trial_id] = 0 if better else self.idle.get(trial_id, 0) + 1
        return self.idle[trial_id] >= 3 or result["training_iteration"] >= 8

    def stop_all(self) -> bool:
        return self.over


def test_a_stopper_of_the_users_own_remembers_over_restarts() -> None:
    theirs = Patient()
    whole = Fed(from_argument(theirs))  # type: ignore[arg-type]
    values = [0.1, 0.3, 0.2, 0.3, 0.4, 0.1, 0.1, 0.2, 0.0]
    said = [whole.report(0, step, m=value) for step, value in enumerate(values[:6], start=1)]
    assert said == [None] * 6
    assert theirs.best == -1.0, "a copy is asked"
    again = Fed(from_argument(Patient()))  # type: ignore[arg-type]
    for step, value in enumerate(values[:6], start=1):
        again.report(0, step, m=value)
    for fed in (whole, again):
        assert fed.report(0, 7, m=0.1) is None
        assert fed.report(1, 1, m=0.9) is None
        assert fed.report(0, 8, m=0.2) == "completed at iteration 8: the stopper Patient returned true"


@pytest.mark.filterwarnings("ignore:the objective 'm' has not been reported yet")
@pytest.mark.parametrize(
    ("stopper", "first", "iterations"),
    [
        (TrialPlateauStopper("train", std=0.01), 1, 4),
        (TrialPlateauStopper("train", std=0.01), 3, 6),  # ended earlier, the trial would fail for want of the objective
        (ExperimentPlateauStopper("train", top=3), 1, 3),
        (ExperimentPlateauStopper("train", top=3), 3, 5),
        (from_argument([TimeStopper(50), None, TrialPlateauStopper("train", std=0.01)]), 3, 6),
        (TimeStopper(5), 1, 5),
        (TimeStopper(5), 10, 5),
    ],
)
def test_reports_without_the_objective_count(stopper: Stopper, first: int, iterations: int) -> None:
    def seldom(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(1, 21):
            yield Step({"train": 0.5, "m": 0.1} if step == first else {"train": 0.5})

    whole = simulate(seldom, SPACE, metric="m", mode="max", scheduler="fifo", num_samples=1, stop=stopper)
    assert [trial.iteration for trial in whole.trials] == [iterations]


class Counting(MaximumIterationStopper):
    """A stopper as users wrote them for earlier versions, which told it only of the trial."""

    def __init__(self) -> None:
        super().__init__(9)
        self.count = 0

    def record_without(self, trial: Trial) -> None:
        self.count += 1


@pytest.mark.filterwarnings("ignore:the objective 'm' has not been reported yet")
def test_a_stopper_for_earlier_versions_is_told_of_reports_after_the_first_objective() -> None:
    stopper = Counting()

    def seldom(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(1, 6):
            yield Step({"train": 0.5, "m": 0.1} if step == 3 else {"train": 0.5})

    simulate(seldom, SPACE, metric="m", mode="max", scheduler="fifo", num_samples=1, stop=stopper)
    assert stopper.count == 2
    for objectives in ((), (Objective("m", "max"), Objective("size", "min"))):
        stopper.setup(context(objectives=objectives))
        known = [stopper.knows_objective(Trial(0, {}, last=last)) for last in ({}, {"m": 1.0}, {"m": 1.0, "size": 2.0})]
        assert known == [False, not objectives, True]


def test_a_stopper_of_the_users_own_ends_trials_and_searches() -> None:
    options: dict[str, Any] = {
        "metric": "m",
        "mode": "max",
        "scheduler": "fifo",
        "search_alg": "random",
        "num_samples": 2,
    }
    ended = simulate(climb, SPACE, stop=Patient(), **options)
    assert [trial.iteration for trial in ended.trials] == [8, 3], "the second is never the better one"
    assert all("the stopper Patient returned true" in trial.reason for trial in ended.trials)
    over = simulate(climb, SPACE, stop=Patient(enough=0.5), max_concurrent_trials=1, **options)
    assert [trial.iteration for trial in over.trials] == [5]
    assert "stop_all of the stopper Patient returned true" in over.trials[0].reason

    def seldom(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(1, 20):
            yield Step(metrics={"m": 0.1 * step} if step % 3 == 1 else {"other": 1.0})

    rare = simulate(seldom, SPACE, stop=Patient(), **options)
    assert [trial.iteration for trial in rare.trials] == [8, 3], "asked at reports without the objective, too"

    class Broken(Patient):
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return bool(result["accuracy"] > 1)

    broken = simulate(climb, SPACE, stop=Broken(), **options)
    assert broken.error is not None
    assert "stop raised KeyError: 'accuracy'; the metrics were 'm'" in broken.error


def test_a_stopper_of_the_users_own_gets_the_configuration_and_the_id_of_the_trial() -> None:
    """It failed with KeyError: 'config'."""

    class Narrow(ray_stoppers.Stopper):  # type: ignore[misc]
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            assert result["trial_id"] == trial_id
            return bool(result["config"]["net"]["width"] < 8 and result["config"]["kind"] == "mlp")

        def stop_all(self) -> bool:
            return False

    def climb(config: dict[str, Any], checkpoint: Any) -> Any:
        for step in range(1, 4):
            yield Step({"m": 0.1 * step})

    space = {"net": {"width": grid_search([4, 16])}, "kind": "mlp"}
    ended = simulate(climb, space, metric="m", mode="max", scheduler="fifo", stop=Narrow())
    assert ended.error is None
    assert sorted((trial.params["net/width"], trial.iteration) for trial in ended.trials) == [(4, 1), (16, 3)]


def test_a_stopper_of_the_users_own_gets_one_configuration_for_all_reports_of_a_trial() -> None:
    """Each report copied all constants of the space, which took 23 ms for a list of 10,000 numbers."""
    configs: dict[str, list[dict[str, Any]]] = {}

    class Keeps(ray_stoppers.Stopper):  # type: ignore[misc]
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            configs.setdefault(trial_id, []).append(result["config"])
            return False

        def __deepcopy__(self, memo: Any) -> Any:
            return self

        def stop_all(self) -> bool:
            return False

    space = Space.from_python({"x": uniform(0, 1), "data": [1, 2]})
    fed = Fed(UsersStopper(Keeps()), space=space)
    trial = Trial(0, {"x": 0.5}, state=TrialState.RUNNING)
    fed.trials.add(trial)
    for iteration in (1, 2):
        fed.report(0, iteration, m=0.0)
    trial.params = {"x": 0.75}
    fed.report(0, 3, m=0.0)
    before, same, after = configs["0"]
    assert before == {"x": 0.5, "data": [1, 2]}
    assert before is same
    assert after == {"x": 0.75, "data": [1, 2]}


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(SpecError, match="a Patient has no JSON form"):
        UsersStopper(Patient()).to_json()
    with pytest.raises(SpecError, match="cannot be imported by another process"):
        FunctionStopper(lambda number, metrics: True).to_json()
    for argument, pointer, says in (
        (3, "/stop", "expected a stopper"),
        ([{"m": 1}, {"m": "high"}], "/stop/1/m", "expected a number"),
        ([lambda: True], "/stop/0/function", "expected a function of two arguments"),
    ):
        with pytest.raises(SpecError, match=says) as caught:
            from_argument(argument)
        assert caught.value.errors[0][0] == pointer
    assert from_argument([]) is None
    unknown = type("NewStopper", (), {"__module__": "ray.tune.stopper.new"})()
    with pytest.raises(SpecError, match="NewStopper is not supported") as caught:
        from_argument([good_enough, unknown])
    assert caught.value.errors[0][0] == "/stop/1"


def test_an_answer_of_another_process_counts_for_its_report_only() -> None:
    stopper = FunctionStopper(good_enough)
    stopper.outside = True
    fed = Fed(stopper)
    assert fed.report(0, 1, m=0.9) is None, "the function is called elsewhere"
    for segment, iteration, stop in ((0, 1, True), (7, 2, True), (0, 2, False)):
        stopper.answered(0, segment, iteration, {"stop": stop})
        assert fed.report(0, 2, m=0.9) is None
    stopper.answered(0, 0, 3, {"stop": True})
    assert fed.report(0, 3, m=0.1) == "completed at iteration 3: the stop function good_enough returned true"
    for name, args, text, traceback in (("KeyError", ["loss"], "'loss'", "line 3"), ("Odd", [], "bad", "")):
        stopper.answered(0, 0, 4, {"error": name, "args": args, "text": text, "traceback": traceback})
        with pytest.raises(Exception, match=text) as raised:
            fed.report(0, 4, m=0.1)
        assert (raised.type.__name__, raised.type is KeyError) == (name, name == "KeyError")
        assert str(raised.value.__cause__ or "").strip() == traceback
    stopper.record(TrialEnded(trial=0, state=TrialState.FAILED), fed.trials)
    assert not stopper._answers
    assert isinstance(pickle.loads(pickle.dumps(stopper)).function, NamedFunction | Unloaded), "it is not loaded"
    assert FunctionStopper(max).function is max, "its arguments are not known"


def test_all_functions_of_a_list_are_those_that_the_driver_calls() -> None:
    both = from_argument([good_enough, {"m": 1}, [{"training_iteration": 3}, abs_is_small]])
    assert both is not None
    assert [one.function for one in both.functions()] == [good_enough, abs_is_small]


def worth(least: float, hours: float, **options: Any) -> tuple[int, str | None]:
    """Return after how many reports of 60 s the search ends, and why. Its best value is 2 - 1/n after n reports."""
    stopper = ExpectedImprovementStopper(least, hours)
    fed = Fed(stopper, mode="max", **options)
    for number in range(200):
        fed.report(number, 1, 60.0, m=2 - 1 / (number + 1))
        if why := stopper.finished(fed.trials):
            return number + 1, why
    return 200, None


def test_the_search_ends_when_another_hour_promises_too_little() -> None:
    reports, why = worth(0.02, 0.5)
    assert 15 <= reports < 100
    assert why is not None
    assert "0.5 more hours of training would improve m by 0.01" in why
    assert f"below 0.02; the best value is {2 - 1 / reports:.6g}" in why
    assert worth(0.01, 0.5)[0] > reports, "less is asked for"
    assert worth(0.02, 0.5, gpus=2.0)[0] < reports, "the same GPU hours are over sooner"
    assert "GPU hours" in (worth(0.02, 0.5, gpus=2.0)[1] or "")
    assert (worth(0.02, 1.0)[1] or "").startswith("1 more hour of training would ")
    assert (worth(0.02, 1.0, gpus=2.0)[1] or "").startswith("1 more GPU hour would ")


def test_the_search_never_ends_before_half_of_the_hours() -> None:
    assert worth(1000.0, 0.5)[0] == 15, "15 minutes of 60 s each"
    assert worth(1000.0, 10.0) == (200, None), "after 3.3 hours, nobody knows what ten more would bring"


def test_a_search_that_gets_no_better_at_all_does_not_go_on_for_ever() -> None:
    stopper = ExpectedImprovementStopper(0.01, 1.0)
    fed = Fed(stopper, mode="max")
    for number in range(300):
        fed.report(number, 1, 60.0, m=min(number, 3) / 10)
        if stopper.finished(fed.trials):
            break
    assert 30 <= number < 299


def test_improvements_beyond_the_constraints_do_not_count() -> None:
    stopper = ExpectedImprovementStopper(0.01)
    fed = Fed(stopper, mode="max")
    fed.report(0, 1, 60.0, m=0.5)
    fed.trials[0].feasible, fed.trials[0].feasible_now = True, False  # as the first report has satisfied them
    fed.report(0, 2, 120.0, m=0.9)
    fed.trials[0].feasible_now = None
    fed.report(0, 2, 120.0, m=0.5)  # no improvement either
    assert stopper.state.score == [0.5]
    assert stopper.state.total == 120.0


def test_the_stopper_from_json() -> None:
    found = from_json({"type": "expected_improvement", "least": 0.01, "hours": 2})
    assert isinstance(found, ExpectedImprovementStopper)
    assert found.to_json() == {"type": "expected_improvement", "least": 0.01, "hours": 2}
    with pytest.raises(SpecError, match="least"):
        from_json({"type": "expected_improvement", "least": 0})
