"""Run searches in virtual time, without a cluster. The decisions are made as in real time, and are reproducible bit for bit.

def evaluate(config, checkpoint):
    step = checkpoint or 0
    while True:
        step += 1
        yield tuner.Step(metrics={"loss": config["lr"] / step}, seconds=3.2, checkpoint=step)

result = tuner.simulate(evaluate, {"lr": tuner.loguniform(1e-4, 1e-1)}, metric="loss", mode="min", num_samples=500,
                        scheduler=tuner.ASHAScheduler(max_t=27), max_concurrent_trials=4)
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from tuner.domain.batch import Entry
from tuner.domain.decisions import Decision, Note
from tuner.domain.experiment import CheckpointPolicy, Limits, Mode, Objective, Scaling, Spec
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Trial
from tuner.driver.assemble import assemble
from tuner.driver.earlier import EarlierExperiment, learn
from tuner.driver.part_arguments import parts_explained, parts_of
from tuner.driver.restarts import with_restarts
from tuner.driver.virtual_loop import Evaluate, VirtualLoop, virtual_loop
from tuner.driver.virtual_loop import Step as Step
from tuner.errors import ErrorCollector, SpecError
from tuner.options import check_number
from tuner.schedulers.base import Scheduler
from tuner.search.base import Searcher
from tuner.space import Space
from tuner.space.words import show


@dataclass(frozen=True, slots=True)
class Simulation:
    """The outcome of a simulated search.

    history: (virtual seconds, trial number, training_iteration, metrics) for each report, in the order of the reports.
    best_trial: the trial with the best value. After repeats, the first run of the configuration with the best expected value.
    best_value: the best value of the objective within the constraints. After repeats, the mean over the runs of `best_trial`.
    best_config: the configuration of `best_trial`.
    best_finished: the completed trial with the best last value.
    error: why the search failed, or why there is no best trial.
    log: every event and decision, in the form in which a driver commits them.
    """

    history: list[tuple[float, int, int, Mapping[str, float]]] = field(repr=False)
    trials: list[Trial] = field(repr=False)
    configs: list[dict[str, Any]] = field(repr=False)
    best_trial: Trial | None = field(repr=False)
    best_value: float | None
    best_config: dict[str, Any] | None
    best_finished: Trial | None = field(repr=False)
    state: ExperimentState
    seconds: float
    error: str | None
    log: list[Entry] = field(repr=False)

    @property
    def decisions(self) -> list[Decision]:
        return [entry for _, entry in self.log if isinstance(entry, Decision)]

    @property
    def warnings(self) -> list[str]:
        """Return the warnings that `tuner.run` would print: likely mistakes in the user's code or settings."""
        return [entry.reason for _, entry in self.log if isinstance(entry, Note) and entry.warning]


@parts_explained
def simulate(
    evaluate: Evaluate,
    space: Mapping[str, Any] | Space,
    *,
    metric: str | Sequence[str],
    mode: Mode | Sequence[Mode],
    num_samples: int | None = None,
    scheduler: Scheduler | Mapping[str, Any] | str | None = None,
    search_alg: Searcher | Mapping[str, Any] | str | Any | None = None,
    max_t: int | None = None,
    stop: Any = None,
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
    max_concurrent_trials: int = 4,
    startup_s: float = 0.0,
    time_budget_s: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    time_attr: str = "training_iteration",
    max_failed_trials: int | None = None,
    max_failures: int = 0,
    repeats: int | Literal["auto"] = 0,
    warm_start: Sequence[EarlierExperiment] = (),
    num_workers: int | Mapping[str, int] = 1,
    resources_allocation: Literal["even", "top"] = "even",
    cluster_workers: int | None = None,
    speedup: Callable[[int], float] | None = None,
    check_restarts: bool = False,
) -> Simulation:
    """Run a search in virtual time.

    evaluate: called as ``evaluate(config, checkpoint)`` when a trial starts, resumes or exploits; it yields one `Step`
        per report. `checkpoint` is None at the beginning, otherwise the checkpoint of the step to continue from.
    startup_s: virtual seconds that every start and every resume takes.
    time_budget_s: virtual seconds from the start of the first trial until all trials are stopped.
    budget: the limit on the training of all trials together, in full trainings; only for the default search.
    max_failed_trials: the number of failed trials at which the search ends as failed.
    repeats: how many times leading configurations may be evaluated again; see `tuner.run`. For this, `evaluate` must give
        different results when it is called again with the same configuration.
    warm_start: the experiments to learn from.
    num_workers: ``{"min": 1, "max": 8}`` makes trials elastic. The seconds of a `Step` are then the time that the smallest number
        of ranks takes.
    resources_allocation: which elastic trials get free workers; see `tuner.run`.
    cluster_workers: how many ranks the cluster holds. None: `max_concurrent_trials` times the smallest number of ranks.
    speedup: called with a trial's number of ranks; returns its speed as a multiple of the speed with the smallest
        number. None: the speed is proportional to the number of ranks.
    check_restarts: whether to test that a restart changes no decision. Before many of the events, rebuild the search from
        its log, as a new driver does. Raise RestartError if the scheduler's state or decisions then differ.

    An exception in `evaluate` fails the trial, as it would on a cluster. A bad space, scheduler or option raises
    SpecError. Warnings that `tuner.run` would print are issued as UserWarning and are in the result's `warnings`.
    """
    num_samples, max_t, max_failed_trials, max_failures = map(
        _whole, (num_samples, max_t, max_failed_trials, max_failures)
    )
    max_concurrent_trials, repeats, cluster_workers, seed = map(
        _whole, (max_concurrent_trials, repeats, cluster_workers, seed)
    )
    mistakes = ErrorCollector()
    for name, count, least in (
        ("num_samples", num_samples, 1),
        ("max_t", max_t, 1),
        ("max_concurrent_trials", max_concurrent_trials, 1),
        ("max_failed_trials", max_failed_trials, 1),
        ("max_failures", max_failures, 0),
        ("repeats", None if repeats == "auto" else repeats, 0),
        ("cluster_workers", cluster_workers, 1),
        ("seed", seed, 0),
    ):
        with mistakes:
            _check_count(name, count, least)
    time_budget_s, budget, startup_s = map(_plain, (time_budget_s, budget, startup_s))
    for name, amount in (("time_budget_s", time_budget_s), ("budget", budget)):
        if amount is not None:
            with mistakes:
                check_number(name, amount, above=0)
    with mistakes:
        check_number("startup_s", startup_s, at_least=0)
    with mistakes:
        if not isinstance(time_attr, str) or not time_attr:
            raise SpecError(f"expected the name of a metric, got {show(time_attr)}", "/time_attr")
    with mistakes:
        _check_evaluate(evaluate)
    with mistakes:
        built = space if isinstance(space, Space) else Space.from_python(space)
    with mistakes:
        aims = objectives(metric, mode)
    parts = parts_of(scheduler, search_alg, stop, mistakes)
    unused = copy.deepcopy(parts) if check_restarts else parts
    if not space and parts.scheduler is not None:
        with mistakes:
            built = Space.from_python(parts.scheduler.default_space())
    scaling = Scaling()
    with mistakes:
        scaling = _scaling(num_workers, resources_allocation)
    mistakes.check()
    spec = Spec(
        name="simulation",
        space=built.to_json(),
        objectives=aims,
        num_samples=num_samples,
        seed=seed,
        max_t=max_t,
        time_attr=time_attr,
        points_to_evaluate=tuple(
            built.check(p, f"/points_to_evaluate/{i}") for i, p in enumerate(points_to_evaluate or ())
        ),
        checkpoint=CheckpointPolicy(interval_s=None),
        scaling=scaling,
        limits=Limits(
            max_concurrent_trials=max_concurrent_trials,
            time_budget_s=time_budget_s,
            budget=budget,
            max_failed_trials=max_failed_trials,
            max_failures=max_failures,
            repeats=repeats,
        ),
        earlier=learn(built, warm_start) if warm_start else {},
    )
    core = assemble(spec, built, parts)
    if check_restarts:
        with_restarts(core, lambda: assemble(spec, built, copy.deepcopy(unused)))
    loop = virtual_loop(core, built, evaluate, startup_s)
    if scaling.elastic:
        loop.workers = cluster_workers
        loop.groups.speedup = speedup or (lambda workers: workers / scaling.num_workers)
    done = _simulation(loop)
    for warning in done.warnings:
        warnings.warn(warning, UserWarning, stacklevel=3)  # the frame above `keywords_explained`
    return done


def _plain(value: Any) -> Any:
    """Return the int or float that a number of NumPy stands for, and any other value as it is."""
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value


def _whole(value: Any) -> Any:
    """Return a whole number as an int, as `tuner.run` does for 3.0, and any other value as it is."""
    plain = _plain(value)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def _check_count(name: str, value: Any, least: int) -> None:
    """Raise SpecError unless the value is None or a whole number of at least `least`."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SpecError(f"expected an integer, got {show(value)}", f"/{name}")
    if value < least:
        raise SpecError(f"expected at least {least}, got {value}", f"/{name}")


def _check_evaluate(evaluate: Evaluate) -> None:
    """Raise SpecError unless the function can be called with a configuration and a checkpoint."""
    try:
        inspect.signature(evaluate).bind({}, None)
    except TypeError as error:
        name = getattr(evaluate, "__qualname__", repr(evaluate))
        message = f"expected a function evaluate(config, checkpoint), but {name} cannot be called like this: {error}"
        raise SpecError(message, "/evaluate") from error
    except ValueError:  # a builtin without a readable signature
        return


def _scaling(num_workers: int | Mapping[str, int], resources_allocation: Literal["even", "top"]) -> Scaling:
    """Return the scaling of a simulated search."""
    if resources_allocation not in ("even", "top"):
        raise SpecError(f'expected "even" or "top", got {show(resources_allocation)}', "/resources_allocation")
    if not isinstance(num_workers, Mapping):
        count = _whole(num_workers)
        _check_count("num_workers", count, 1)
        return Scaling(num_workers=count)
    whole = all(isinstance(value, Integral) for value in num_workers.values())
    if num_workers.keys() != {"min", "max"} or not whole or not 1 <= num_workers["min"] <= num_workers["max"]:
        raise SpecError(f'expected an integer or {{"min": 1, "max": 8}}, got {dict(num_workers)}', "/num_workers")
    return Scaling(
        num_workers=num_workers["min"], max_workers=num_workers["max"], resources_allocation=resources_allocation
    )


def objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[Objective, ...]:
    """Check the metrics and their modes, and return the objectives."""
    if not isinstance(metric, str | list | tuple) or not metric:
        raise SpecError(f"expected the name of a metric, or a list of names, got {show(metric)}", "/metric")
    if not isinstance(mode, str | list | tuple):
        message = f'expected "min" or "max", or a list with one of them for each metric, got {show(mode)}'
        raise SpecError(message, "/mode")
    metrics = [metric] if isinstance(metric, str) else list(metric)
    modes = [mode] * len(metrics) if isinstance(mode, str) else list(mode)
    if len(modes) != len(metrics):
        raise SpecError(f"expected one mode for each of {len(metrics)} metrics, got {len(modes)}", "/mode")
    for name in metrics:
        if not isinstance(name, str) or not name:
            raise SpecError(f"expected the name of a metric, got {name!r}", "/metric")
    for m in modes:
        if m not in ("min", "max"):
            raise SpecError(f"expected 'min' or 'max', got {m!r}", "/mode")
    if len(set(metrics)) != len(metrics):
        raise SpecError("the same metric twice", "/metric")
    return tuple(Objective(n, m) for n, m in zip(metrics, modes, strict=True))


def _simulation(loop: VirtualLoop) -> Simulation:
    """Run the loop until the search ends, and return its outcome."""
    loop.run()
    core, config = loop.core, loop.groups.config
    best = core.best_trial()
    mark = core.experiment.leaderboard.of(best) if best else None
    runs = core.experiment.repeats.summary()
    return Simulation(
        history=loop.groups.history,
        trials=list(core.trials),
        configs=[config(trial) for trial in core.trials],
        best_trial=best,
        best_value=runs["mean"] if runs else mark.value if mark else None,
        best_config=config(best, best.params_at(mark)) if best and mark else None,
        best_finished=core.experiment.leaderboard.best_finished(core.trials),
        state=core.state,
        seconds=loop.clock.now,
        error=core.experiment.error,
        log=loop.journal.log,
    )
