"""The core in virtual time: searches run to their end, repeat bit for bit, and survive a fold after any entry of their log."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tuner
from tests.schedulers.driving import SPACE as WIDE
from tests.schedulers.examples import SCHEDULERS
from tuner import schedulers
from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.experiment import Limits, Objective, Spec
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Trial
from tuner.driver.assemble import assemble
from tuner.driver.core import Core
from tuner.driver.part_arguments import parts_of
from tuner.driver.virtual import Simulation, Step, simulate
from tuner.errors import ErrorCollector, SpecError
from tuner.schedulers import from_json
from tuner.space import Space

SPACE = {"x": tuner.uniform(0, 1), "width": tuner.choice([16, 32, 64])}


def curve(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Simulate a loss that falls towards x, faster for greater widths, from a checkpoint if there is one."""
    step = checkpoint or 0
    while True:
        step += 1
        yield Step({"loss": config["x"] + 8 / config["width"] / step}, seconds=1 + config["x"], checkpoint=step)


def search(evaluate: Any = curve, **options: Any) -> Simulation:
    given_options = {"metric": "loss", "mode": "min", "num_samples": 30, "max_t": 27, "search_alg": "random", **options}
    return simulate(evaluate, options.pop("space", SPACE), **{k: v for k, v in given_options.items() if k != "space"})


def test_asha_spends_less_than_fifo_for_a_result_as_good() -> None:
    fifo = search(scheduler="fifo")
    asha = search(scheduler="asha")
    assert fifo.state is asha.state is ExperimentState.COMPLETED
    assert len(fifo.history) == 30 * 27
    assert len(asha.history) < 0.4 * len(fifo.history)
    assert asha.best_value is not None
    assert fifo.best_value is not None
    assert asha.best_value <= fifo.best_value * 1.3 + 0.02
    assert {t.state for t in asha.trials} == {TrialState.COMPLETED, TrialState.STOPPED}


def test_every_decision_has_a_reason() -> None:
    assert all(decision.reason for decision in search(scheduler="asha").decisions)


@pytest.mark.parametrize("scheduler", ["fifo", "asha", "asha_promotion", "hyperband", "median"])
def test_the_same_seed_gives_the_same_run_to_the_bit(scheduler: str) -> None:
    first, second = search(scheduler=scheduler, startup_s=0.5), search(scheduler=scheduler, startup_s=0.5)
    assert first.history == second.history
    assert first.log == second.log
    assert search(scheduler=scheduler, seed=1).history != first.history


def rebuilt(result_of: dict[str, Any], log: list[Any], upto: int) -> Core:
    space = Space.from_python(SPACE)
    spec = Spec(
        name="simulation",
        space=space.to_json(),
        objectives=(Objective("loss", "min"),),
        num_samples=result_of.get("num_samples", 30),
        max_t=27,
        scheduler={"type": result_of["scheduler"]},
        search={"type": "random"},
        limits=Limits(max_concurrent_trials=4),
    )
    core = assemble(spec, space)
    for seq, entry in log[:upto]:
        core.fold(seq, entry)
    return core


def picture(core: Core) -> Any:
    """Return everything that decisions depend on."""
    state = core.scheduler.state
    return [asdict(t) for t in core.trials], core.state, core.seq, asdict(state) if state is not None else None


@pytest.mark.parametrize("scheduler", ["fifo", "asha", "asha_promotion", "hyperband", "median"])
def test_a_fold_of_the_log_gives_the_state_that_wrote_it(scheduler: str) -> None:
    log = search(scheduler=scheduler).log
    live = rebuilt({"scheduler": scheduler}, log, len(log))
    assert live.state is ExperimentState.COMPLETED
    assert [t.number for t in live.trials] == list(range(30))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_killed_anywhere_and_folded_the_next_decisions_are_the_same(data: st.DataObject) -> None:
    """Cut the log before any event; the folded core decides on that event what the first one decided."""
    scheduler = data.draw(st.sampled_from(["asha", "asha_promotion", "hyperband", "median"]))
    log = search(scheduler=scheduler, num_samples=12).log
    cuts = [i for i, (_, entry) in enumerate(log) if isinstance(entry, e.Reported | e.SegmentEnded)]
    cut = data.draw(st.sampled_from(cuts))
    core = rebuilt({"scheduler": scheduler, "num_samples": 12}, log, cut)
    for trial in core.trials:
        if trial.holds_resources and trial.segments[-1].started:
            core.verdict(trial.ref)
    event = log[cut][1]
    assert isinstance(event, e.Event)
    out = core.handle(event)
    assert out.log == log[cut : cut + len(out.log)]
    follows = cut + len(out.log)
    assert follows == len(log) or isinstance(log[follows][1], e.Event)


def test_a_nan_stops_its_trial_and_is_never_best() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({"loss": 0.5})
        yield Step({"loss": math.nan if config["x"] < 0.5 else 0.4})
        yield Step({"loss": -math.inf if config["x"] < 0.8 else 0.3})

    result = search(evaluate, scheduler="fifo")
    assert result.best_value == 0.3
    diverged = [t for t in result.trials if t.diverged]
    assert diverged
    assert all(t.state is TrialState.STOPPED for t in diverged)
    assert any("loss is nan" in t.reason for t in diverged)
    assert any("loss is -inf" in t.reason for t in diverged)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_the_seconds_of_a_step_are_checked(seconds: float) -> None:
    """A simulation of steps that never end hung."""
    with pytest.raises(ValueError, match="must be finite and 0 or more"):
        search(lambda config, checkpoint: iter([Step({"loss": 1.0}, seconds)]), scheduler="fifo")


def test_a_metric_that_never_comes_fails_with_the_names_of_those_that_came() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({"accuracy": 0.5, "los": 1.0})

    result = search(evaluate, scheduler="asha")
    assert result.state is ExperimentState.FAILED
    assert result.error is not None
    assert "'loss' is not among the reported metrics: 'accuracy', 'los'; did you mean 'los'?" in result.error
    assert [row[2] for row in result.history] == [1] * 4, "the first report tells it for all"
    assert [str(trial.state) for trial in result.trials] == ["failed", "stopped", "stopped", "stopped"]
    assert result.trials[1].reason == "every trial runs the same function; the failure of trial 0 would repeat here"


def every_third(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Report the objective with every third report, and other metrics in between."""
    begin = checkpoint or 0
    for step in range(begin + 1, 17):
        metrics = {"loss": config["x"] / step} if step % 3 == 0 or step == 1 else {"train": 1.0 / step}
        yield Step(metrics, checkpoint=step)


def test_once_it_was_reported_the_objective_may_be_left_out() -> None:
    result = search(every_third, scheduler="fifo", max_t=12)
    assert result.state is ExperimentState.COMPLETED
    assert {(str(trial.state), trial.iteration) for trial in result.trials} == {("completed", 12)}
    trial = result.best_trial
    assert trial is not None
    assert trial.values.keys() == {1, 3, 6, 9, 12}
    assert trial.last == {"loss": trial.best_value, "train": 1 / 11}, "the newest value of each"


def epochs(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Report the training loss at each step, and the objective only at the end of each epoch."""
    for step in range((checkpoint or 0) + 1, 13):
        yield Step({"val_loss": config["x"] / step} if step % 4 == 0 else {"train_loss": 1.0}, checkpoint=step)


@pytest.mark.filterwarnings("ignore:the objective:UserWarning")
@pytest.mark.parametrize("scheduler", ["fifo", "asha", "asha_promotion", "hyperband", "median", "pbt", "freeze_thaw"])
def test_the_objective_may_come_at_the_end_of_the_first_epoch(scheduler: str) -> None:
    result = tuner.simulate(
        epochs, SPACE, metric="val_loss", mode="min", num_samples=4, scheduler=scheduler, max_t=12, time_budget_s=10_000
    )
    assert result.state is ExperimentState.COMPLETED, result.error
    assert result.best_value is not None
    notes = [entry.reason for entry in result.decisions if getattr(entry, "warning", False)]
    assert notes == ["the objective 'val_loss' has not been reported yet: the first report has 'train_loss'"]


@pytest.mark.filterwarnings("ignore:the objective:UserWarning")
def test_a_trial_that_ends_without_the_objective_ends_the_search() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for _ in range(3):
            yield Step({"accuracy": 0.5})

    result = tuner.simulate(evaluate, SPACE, metric="auroc", mode="max", num_samples=9, max_concurrent_trials=1)
    assert result.state is ExperimentState.FAILED
    assert result.error is not None
    assert result.error.startswith(
        "trial 0, rank 0: the objective 'auroc' is not among the reported metrics: 'accuracy'"
    )
    assert len(result.trials) == 1
    limited = tuner.simulate(evaluate, SPACE, metric="auroc", mode="max", num_samples=9, max_t=2, scheduler="fifo")
    assert limited.state is ExperimentState.FAILED

    def empty(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({})

    assert search(empty, scheduler="fifo", num_samples=9).state is ExperimentState.FAILED


@pytest.mark.filterwarnings("ignore:the objective .* has not been reported yet")
@pytest.mark.parametrize(
    "stop",
    [{"training_iteration": 3}, lambda number, metrics: metrics["other"] >= 3],
    ids=["threshold", "function"],
)
def test_a_trial_that_stop_ends_before_it_has_the_objective_ends_the_search(stop: Any) -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range(1, 10):
            yield Step({"other": float(step)})

    result = search(evaluate, scheduler="fifo", num_samples=2, max_concurrent_trials=1, stop=stop)
    assert result.state is ExperimentState.FAILED
    assert result.error is not None
    assert "'loss' is not among the reported metrics: 'other'" in result.error
    assert [trial.iteration for trial in result.trials] == [3]


@pytest.mark.filterwarnings("ignore:the objective .* has not been reported yet")
def test_a_stop_function_may_look_at_what_comes_later() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range(1, 10):
            yield Step({"other": 1.0} if step < 3 else {"loss": 1.0 / step})

    result = search(evaluate, scheduler="fifo", num_samples=1, stop=lambda number, metrics: metrics["loss"] < 0.2)
    assert result.state is ExperimentState.COMPLETED
    assert [trial.iteration for trial in result.trials] == [6]


def test_max_t_holds_at_a_report_without_the_objective_too() -> None:
    result = search(every_third, scheduler="fifo", max_t=8)
    assert {(str(trial.state), trial.iteration) for trial in result.trials} == {("completed", 8)}


@pytest.mark.parametrize(
    ("scheduler", "decided"),
    [
        ({"type": "asha", "grace_period": 4, "reduction_factor": 2}, {6}),
        ({"type": "asha_promotion", "grace_period": 4, "reduction_factor": 2}, {6, 9}),
        ({"type": "hyperband", "reduction_factor": 2}, {1, 3, 6}),
        ({"type": "pbt", "perturbation_interval": 4, "quantile_fraction": 0.5}, {6, 12}),
        ({"type": "median", "grace_period": 4, "min_samples_required": 1}, {6}),
    ],
)
def test_a_milestone_without_the_objective_moves_to_the_next_report_that_has_it(
    scheduler: dict[str, Any], decided: set[int]
) -> None:
    result = search(every_third, scheduler=scheduler, max_t=16, num_samples=8)
    assert result.state is ExperimentState.COMPLETED
    reached: dict[int, int] = {}
    found = set()
    for _, entry in result.log:
        if isinstance(entry, e.Reported):
            reached[entry.trial] = entry.iteration
        elif isinstance(entry, d.Stop | d.Pause | d.Exploit) and entry.trial in reached:
            found.add(reached[entry.trial])
    assert found == decided


def test_a_metric_that_others_have_reported_fails_only_those_without() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        yield Step({"loss": 1.0} if config["width"] > 16 else {"los": 1.0})

    points = [{"x": 0.5, "width": 64}, {"x": 0.5, "width": 16}, {"x": 0.5, "width": 32}]
    options: dict[str, Any] = {"num_samples": 3, "points_to_evaluate": points, "max_concurrent_trials": 1}
    result = search(evaluate, scheduler="fifo", **options)
    assert [str(trial.state) for trial in result.trials] == ["completed", "failed", "completed"]


def test_a_search_whose_every_trial_fails_gives_up_early() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        raise ValueError("no such file")

    result = search(evaluate, num_samples=500, scheduler="fifo")
    assert result.state is ExperimentState.FAILED
    assert 3 <= len(result.trials) < 10, "those that ran beside the third"
    assert result.error is not None
    assert "ValueError: no such file" in result.error


def test_a_failed_trial_is_retried_from_its_checkpoint() -> None:
    calls: list[Any] = []

    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        calls.append(checkpoint)
        step = checkpoint or 0
        while step < 5:
            step += 1
            if step == 4 and checkpoint is None:
                raise RuntimeError("out of luck")
            yield Step({"loss": 1 / step}, checkpoint=step)

    result = search(evaluate, num_samples=1, scheduler="fifo", max_failures=1)
    assert calls == [None, 3]
    assert [t.state for t in result.trials] == [TrialState.COMPLETED]
    assert [(t.failures, t.reports, t.iteration) for t in result.trials] == [(1, 5, 5)]


@pytest.mark.parametrize(("step_s", "budget_s"), [(0.1, 1.7000000000000004), (0.3, 0.3), (0.3, 1.5), (1.0, 5.0)])
def test_a_search_whose_trial_ends_just_when_the_time_budget_is_used_up_ends(step_s: float, budget_s: float) -> None:
    """With a startup time, the sum of the times was above the budget by a rounding error. The search then stayed "running"."""

    def one_step(config: dict[str, Any], checkpoint: Any) -> Iterator[tuner.Step]:
        yield tuner.Step({"loss": config["x"]}, step_s)

    result = tuner.simulate(
        one_step,
        {"x": tuner.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_samples=30,
        max_concurrent_trials=1,
        time_budget_s=budget_s,
        startup_s=0.1,
    )
    assert result.state == "completed"


def test_the_time_budget_ends_everything() -> None:
    result = search(scheduler="fifo", num_samples=None, time_budget_s=100)
    assert result.state is ExperimentState.COMPLETED
    assert result.seconds == 100
    assert all(time <= 100 for time, *_ in result.history)
    assert all(t.state.ended for t in result.trials)


def test_numbers_of_numpy_are_numbers() -> None:
    plain = search(scheduler="fifo", num_samples=4, time_budget_s=100, startup_s=1)
    numpy = search(scheduler="fifo", num_samples=np.int64(4), time_budget_s=np.int64(100), startup_s=np.float32(1))
    assert numpy.history == plain.history
    with pytest.raises(SpecError, match="time_budget_s: expected a number above 0, got 0"):
        search(scheduler="fifo", time_budget_s=np.int64(0))


def test_stop_criteria_complete_a_trial() -> None:
    result = search(scheduler="fifo", max_t=None, stop={"training_iteration": 3})
    assert {t.iteration for t in result.trials} == {3}
    assert {t.state for t in result.trials} == {TrialState.COMPLETED}


def test_paused_trials_are_called_again_with_their_checkpoint() -> None:
    result = search(scheduler="asha_promotion")
    resumed = [t for t in result.trials if len(t.segments) > 1]
    assert resumed
    for trial in resumed:
        assert all(s.start_iteration > 0 for s in trial.segments[1:])
        assert sorted(trial.values) == list(range(1, trial.iteration + 1))


def test_startup_costs_virtual_time() -> None:
    assert search(scheduler="fifo", startup_s=10).seconds > search(scheduler="fifo").seconds + 30


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"mode": "largest"}, "/mode"),
        ({"metric": ""}, "/metric"),
        ({"scheduler": "ashaa"}, "/scheduler/type"),
        ({"scheduler": {"type": "asha", "max_T": 3}}, "/scheduler/max_T"),
        ({"points_to_evaluate": [{"y": 1}]}, "/points_to_evaluate/0/y"),
        ({"time_budget_s": -1}, "/time_budget_s"),
        ({"time_budget_s": math.nan}, "/time_budget_s"),
        ({"budget": math.inf}, "/budget"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SpecError) as caught:
        search(**options)
    assert [p for p, _ in caught.value.errors] == [pointer]


def test_trials_are_views_of_the_log() -> None:
    result = search(scheduler="asha")
    starts = [entry for _, entry in result.log if isinstance(entry, d.Start)]
    assert [s.params for s in starts] == [t.params for t in result.trials]
    assert all(isinstance(t, Trial) for t in result.trials)


@pytest.mark.parametrize("scheduler", [None, "fifo", "asha"])
def test_a_grid_alone_is_run_once_whatever_the_scheduler(scheduler: str | None) -> None:
    space = {"x": tuner.grid_search([0.1, 0.2]), "width": tuner.grid_search([16, 32, 64])}
    result = search(space=space, scheduler=scheduler, search_alg=None, num_samples=None)
    assert sorted((c["x"], c["width"]) for c in result.configs) == [(x, w) for x in (0.1, 0.2) for w in (16, 32, 64)]


@pytest.mark.parametrize("options", [*SCHEDULERS.values(), {"type": "freeze_thaw"}], ids=[*SCHEDULERS, "freeze_thaw"])
def test_a_scheduler_object_can_be_used_again(options: dict[str, Any]) -> None:
    def level(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range((checkpoint or 0) + 1, 10):
            yield Step({"loss": config["depth"] + config["lr"] + 1 / step}, checkpoint=step)

    scheduler = from_json(options)
    asked: dict[str, Any] = {"space": WIDE, "num_samples": 8, "scheduler": scheduler, "max_t": 9}
    first, second = (search(level, **asked) for _ in range(2))
    assert [entry.to_json() for _, entry in second.log] == [entry.to_json() for _, entry in first.log]


def test_a_stopper_object_can_be_used_again() -> None:
    plateau = tuner.stoppers.TrialPlateauStopper(std=0.5, num_results=3, grace_period=3)
    for stop in (tuner.stoppers.TimeStopper(3), [tuner.stoppers.ExperimentPlateauStopper(top=4, std=9.0), plateau]):
        first, second = (search(scheduler="fifo", num_samples=3, stop=stop) for _ in range(2))
        assert [entry.to_json() for _, entry in second.log] == [entry.to_json() for _, entry in first.log]


def test_an_object_that_a_simulation_used_starts_afresh_on_a_cluster() -> None:
    scheduler = tuner.ASHAScheduler(reduction_factor=3)
    search(scheduler=scheduler)
    used = copy.deepcopy(scheduler.state)
    assert parts_of(scheduler, None, None, ErrorCollector()).scheduler is scheduler
    assert scheduler.state == tuner.ASHAScheduler(reduction_factor=3).state != used


@pytest.mark.parametrize("max_t", [5, 20, None])
@pytest.mark.parametrize("own", [10, 9.5])
def test_trials_end_at_the_smaller_max_t_and_the_log_names_both(max_t: int | None, own: float) -> None:
    result = search(scheduler=tuner.MedianStoppingRule(max_t=own), num_samples=2, max_t=max_t)
    assert [trial.iteration for trial in result.trials] == [5 if max_t == 5 else 10] * 2
    noted = [note.reason for note in result.decisions if isinstance(note, d.Note) and "max_t" in note.reason]
    smaller = f"trials end at max_t {min(own, max_t or own):g}, the smaller of two"
    both = f"{smaller}: the experiment's max_t is {max_t}, and the scheduler's own is {own:g}"
    assert noted == ([] if max_t is None else [both])


def tempting(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
    """Simulate a loss that is best where the size is above 0.5."""
    step = checkpoint or 0
    while True:
        step += 1
        yield Step({"loss": config["x"] + 1 / step, "size": 1 - config["x"]}, checkpoint=step)


@pytest.mark.parametrize("scheduler", sorted({*schedulers.REGISTRY} - {"pbt_replay", "async_hyperband", "fifo"}))
def test_trials_that_violate_the_constraints_lose_to_those_that_satisfy_them(scheduler: str) -> None:
    constraints = {"size": {"max": 0.5}}
    own = {"type": "tpe", "constraints": constraints, "n_startup_trials": 100}
    result = search(tempting, scheduler=scheduler, search_alg=own, num_samples=24)
    if scheduler in ("pbt", "pb2"):
        moves = [m for m in result.decisions if isinstance(m, d.Exploit) and "violates" in m.reason]
        assert moves
        assert all("satisfies them" in m.reason for m in moves)
        return
    lengths: dict[bool, list[float]] = {True: [], False: []}
    for trial in result.trials:
        lengths[trial.params["x"] >= 0.5].append(trial.iteration)
    assert np.mean(lengths[True]) > 1.5 * np.mean(lengths[False])


@pytest.mark.parametrize("search_alg", [None, "random", "grid"])
def test_a_grid_beside_other_parameters_is_run_once(search_alg: str | None) -> None:
    space = {"x": tuner.uniform(0, 1), "width": tuner.grid_search([16, 32, 64])}
    result = search(space=space, search_alg=search_alg, num_samples=None)
    assert [c["width"] for c in result.configs] == [16, 32, 64]
    assert not any("num_samples" in note.reason for note in result.decisions if isinstance(note, d.Note))


def test_the_grid_searcher_runs_all_choices_once() -> None:
    space = {"x": tuner.uniform(0, 1), "width": tuner.choice([16, 32, 64])}
    assert [c["width"] for c in search(space=space, search_alg="grid", num_samples=None).configs] == [16, 32, 64]


def test_a_generator_that_yields_something_else_is_told_so() -> None:
    with pytest.raises(TypeError, match=r"must yield tuner\.Step"):
        search(lambda config, checkpoint: iter([{"loss": 1.0}]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": 3}, "metric: expected the name of a metric, or a list of names, got int 3"),
        ({"metric": []}, "metric: expected the name of a metric, or a list of names, got list []"),
        ({"metric": ["m", "m"]}, "metric: the same metric twice"),
        ({"mode": None}, 'mode: expected "min" or "max", or a list with one of them for each metric, got nothing'),
        ({"num_samples": 0}, "num_samples: expected at least 1, got 0"),
        ({"num_samples": 1.5}, "num_samples: expected an integer, got float 1.5"),
        ({"max_t": "5"}, "max_t: expected an integer, got str '5'"),
        ({"max_concurrent_trials": -1}, "max_concurrent_trials: expected at least 1, got -1"),
        ({"max_failed_trials": 0}, "max_failed_trials: expected at least 1, got 0"),
        ({"repeats": "always"}, "repeats: expected an integer, got str 'always'"),
        ({"seed": None, "max_failures": -1}, "max_failures: expected at least 0, got -1"),
        ({"time_budget_s": -1}, "time_budget_s: expected a number above 0, got -1"),
        ({"budget": float("nan")}, "budget: expected a number, got float nan"),
        ({"startup_s": "5"}, "startup_s: expected a number, got str '5'"),
        ({"time_attr": ""}, "time_attr: expected the name of a metric, got str ''"),
        ({"num_workers": 0}, "num_workers: expected at least 1, got 0"),
        ({"num_workers": {"min": "1", "max": 2}}, "num_workers: expected an integer or"),
        ({"resources_allocation": "first"}, 'resources_allocation: expected "even" or "top", got str \'first\''),
    ],
)
def test_arguments_that_no_search_could_use(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        simulate(
            lambda config, checkpoint: iter(()), {"x": tuner.uniform(0, 1)}, **{"metric": "m", "mode": "min", **options}
        )
    assert message in str(caught.value)


def test_whole_numbers_may_be_floats_as_in_run() -> None:
    counts = {"num_samples": 4.0, "max_concurrent_trials": np.float64(2), "seed": 1.0, "num_workers": 1.0}
    found = search(max_t=3.0, scheduler="fifo", **counts)
    assert (
        found.history
        == search(max_t=3, scheduler="fifo", **{name: int(count) for name, count in counts.items()}).history
    )
    assert [trial.iteration for trial in found.trials] == [3] * 4


def test_mistakes_in_every_argument_are_told_of_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        simulate(
            lambda config, checkpoint: iter(()),
            3,  # type: ignore[arg-type]
            metric="m",
            mode="up",  # type: ignore[arg-type]
            scheduler={"type": "asha", "eta": 3},
            search_alg="tpee",
            stop=3,
        )
    pointers = [pointer for pointer, _ in caught.value.errors]
    assert pointers == ["/space", "/mode", "/scheduler/eta", "/search/type", "/stop"]


def test_a_scheduler_and_a_searcher_that_do_not_fit_are_told_of_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        simulate(
            lambda config, checkpoint: iter(()),
            {"x": tuner.grid_search([1, 2])},
            metric="m",
            mode="max",
            max_t=5,
            scheduler={"type": "asha", "grace_period": 10},
            search_alg="cmaes",
        )
    assert {pointer for pointer, _ in caught.value.errors} == {"/scheduler/max_t", "/search"}


def test_what_a_run_would_warn_of_a_simulation_warns_of() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for _ in range(3):
            yield Step({"loss": config["x"]})

    asked: dict[str, Any] = {"metric": "loss", "mode": "min", "num_samples": 2, "scheduler": "fifo"}
    with pytest.warns(UserWarning, match="stop uses 'los'.*did you mean 'loss'") as caught:
        done = simulate(evaluate, {"x": tuner.uniform(0, 1)}, **asked, stop={"los": 0.1})
    assert done.warnings == [str(one.message) for one in caught]
    assert caught[0].filename == __file__, "where the user called it"
    assert simulate(evaluate, {"x": tuner.uniform(0, 1)}, **asked).warnings == []


def test_elastic_trials_use_the_workers_of_stopped_ones() -> None:
    def evaluate(config: dict[str, Any], checkpoint: Any) -> Iterator[Step]:
        for step in range((checkpoint or 0) + 1, 82):
            yield Step({"loss": config["x"] + 1 / step}, 60.0, step)

    def searched(num_workers: Any) -> Simulation:
        return simulate(
            evaluate,
            {"x": tuner.uniform(0, 1)},
            metric="loss",
            mode="min",
            num_samples=16,
            max_t=81,
            scheduler="asha",
            search_alg="random",
            max_concurrent_trials=8,
            startup_s=20.0,
            num_workers=num_workers,
        )

    fixed, elastic = searched(1), searched({"min": 1, "max": 8})
    assert elastic.best_value == fixed.best_value
    assert elastic.seconds < fixed.seconds / 2
    assert elastic.log == searched({"min": 1, "max": 8}).log
    assert max(segment.workers for trial in elastic.trials for segment in trial.segments) > 2
    with pytest.raises(SpecError, match="expected an integer or"):
        searched({"min": 2})


def test_a_function_with_other_arguments_is_refused_before_any_trial() -> None:
    def train(config: dict[str, float]) -> Iterator[Step]:
        yield Step({"loss": config["lr"]})

    with pytest.raises(
        SpecError, match=r"expected a function evaluate\(config, checkpoint\), but .*train cannot be called like this"
    ):
        simulate(train, {"lr": tuner.uniform(0, 1)}, metric="loss", mode="min", num_samples=2)  # type: ignore[arg-type]
