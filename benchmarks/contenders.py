"""The searches that `benchmarks/quality.py` compares in virtual time: our own, and those that most people use today.

A method is `(problem, seed, setting) -> history`. A history has (virtual seconds, value) for every report.
"""

from __future__ import annotations

import ast
import heapq
import importlib
import itertools
import pkgutil
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import tuner
from benchmarks.learning_curves import Problem, imported
from tuner.driver.virtual import Simulation
from tuner.schedulers import freeze_thaw

ETA = 3
OPTION = "option."
History = list[tuple[float, float]]
Report = Callable[[int, float], bool]
"""(report count, value) -> whether the trial continues."""
Training = tuple[dict[str, Any], int, Report]
"""A configuration, its reports so far, and the receiver of the next ones."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Describe one benchmark search.

    workers: the number of trials that train at once. startup: the cost of a start, as a share of a full training. end: the number
    of full trainings that all workers together may spend. curves: the folder that contains the prototype.
    """

    workers: int
    startup: float
    end: float
    curves: Path

    def seconds(self, problem: Problem) -> float:
        return self.end * problem.full_seconds / self.workers


# -- ours ----------------------------------------------------------------------------------------------------------------


def simulated(problem: Problem, seed: int, setting: Setting, **options: Any) -> History:
    result = simulation(problem, seed, setting, **options)
    return [(t, metrics["value"]) for t, _, _, metrics in result.history]


def simulation(problem: Problem, seed: int, setting: Setting, **options: Any) -> Simulation:
    """Run one of our searches in virtual time."""
    known: dict[str, tuple[Any, Any]] = {}

    def evaluate(config: dict[str, Any], done: int | None) -> Iterator[tuner.Step]:
        key = repr(config)
        if key not in known:
            known[key] = problem.curve(config)
        values, seconds = known[key]
        steps = np.diff(seconds, prepend=0.0)
        for r in range(done or 0, len(values)):
            yield tuner.Step(metrics={"value": float(values[r])}, seconds=float(steps[r]), checkpoint=r + 1)

    return tuner.simulate(
        evaluate,
        problem.space,
        metric="value",
        mode=problem.mode,
        max_t=problem.max_t,
        max_concurrent_trials=setting.workers,
        startup_s=setting.startup * problem.full_seconds,
        time_budget_s=setting.seconds(problem),
        seed=seed,
        **options,
    )


def options_in(changes: str) -> dict[str, Any]:
    """Return the options of the scheduler in a list of changes: {"thaw": 0.2} for "option.thaw=0.2;novelty.CROWDED=0.1"."""
    pairs = [change.split("=", 1) for change in filter(None, changes.split(";"))]
    named = [(path.strip(), text) for path, text in pairs]
    return {path.removeprefix(OPTION): ast.literal_eval(text) for path, text in named if path.startswith(OPTION)}


def part_of_freeze_thaw(name: str) -> types.ModuleType:
    """Return the module of freeze-thaw with this name, whichever of its packages the module is in."""
    for found in pkgutil.walk_packages(freeze_thaw.__path__, f"{freeze_thaw.__name__}."):
        if not found.ispkg and found.name.rpartition(".")[2] == name:
            return importlib.import_module(found.name)
    raise ValueError(f"freeze-thaw has no module {name!r}")


@contextmanager
def changed(changes: str) -> Iterator[None]:
    """Change constants of freeze-thaw within a `with` block: "novelty.CROWDED=0.1;scheduler.PRIOR.lengthscale=(1.0, 0.7)".

    Options of the scheduler ("option.thaw=0.2") are not changed here; see `options_in`.
    """
    undo = []
    try:
        for change in filter(None, changes.split(";")):
            path, text = change.split("=", 1)
            if path.strip().startswith(OPTION):
                continue
            name, constant, *field = path.strip().split(".")
            module = part_of_freeze_thaw(name)
            before, value = getattr(module, constant), ast.literal_eval(text)
            setattr(module, constant, replace(before, **{field[0]: value}) if field else value)
            undo.append((module, constant, before))
        yield
    finally:
        for module, constant, before in reversed(undo):
            setattr(module, constant, before)


# -- theirs --------------------------------------------------------------------------------------------------------------


class Contender(Protocol):
    def start(self) -> Training | None:
        """Return the next training of a free worker; None if there is none before the next report."""


class Random:
    """Trains random configurations to the end."""

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        self.problem, self.rng = problem, np.random.default_rng([seed, 1])

    def draw(self) -> dict[str, Any]:
        space = self.problem.space
        return space.config(space.from_unit([float(u) for u in self.rng.random(len(space))]))

    def start(self) -> Training:
        return self.draw(), 0, lambda r, value: True


class RayASHA(Random):
    """Runs Ray's AsyncHyperBandScheduler over the same random configurations."""

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        super().__init__(problem, seed, setting)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ray.tune.schedulers import AsyncHyperBandScheduler

        self.scheduler = AsyncHyperBandScheduler(max_t=problem.max_t, grace_period=1, reduction_factor=ETA)
        self.scheduler.set_search_properties("value", problem.mode)
        self.count = itertools.count()

    def start(self) -> Training:
        trial = types.SimpleNamespace(trial_id=str(next(self.count)))
        self.scheduler.on_trial_add(None, trial)

        def report(r: int, value: float) -> bool:
            result = {"value": value, "training_iteration": r}
            return bool(self.scheduler.on_trial_result(None, trial, result) == self.scheduler.CONTINUE)

        return self.draw(), 0, report


class Optuna:
    """Runs Optuna's TPESampler, with its HyperbandPruner or without early stopping."""

    def __init__(self, problem: Problem, seed: int, setting: Setting, prunes: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.problem, self.optuna = problem, optuna
        pruner = optuna.pruners.HyperbandPruner(1, problem.max_t, ETA) if prunes else optuna.pruners.NopPruner()
        self.study = optuna.create_study(
            direction="maximize" if problem.mode == "max" else "minimize",
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=pruner,
        )

    def start(self) -> Training:
        trial = self.study.ask()

        def report(r: int, value: float) -> bool:
            trial.report(value, r)
            if r >= self.problem.max_t:
                self.study.tell(trial, value)
                return False
            if trial.should_prune():
                self.study.tell(trial, state=self.optuna.trial.TrialState.PRUNED)
                return False
            return True

        return self.problem.space.config(self._params(trial)), 0, report

    def _params(self, trial: Any) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for p in self.problem.space.parameters:
            if p.condition is not None:
                above, index = p.condition
                if above not in params or self.problem.space[above].index(params[above]) != index:
                    continue
            if p.kind == "choice":
                params[p.path] = p.at(trial.suggest_categorical(p.path, list(range(len(p.categories)))))
            elif p.kind == "int":
                params[p.path] = trial.suggest_int(p.path, int(p.lower), int(p.upper), log=p.log)
            else:
                params[p.path] = trial.suggest_float(p.path, p.lower, p.upper, log=p.log)
        return params


class Prototype:
    """The first freeze-thaw search, `freeze_thaw_prototype.py` in the folder of the curves. It searches only the unit cube."""

    def __init__(self, problem: Problem, seed: int, setting: Setting) -> None:
        import sys

        base = types.ModuleType("simulate")  # the module that the prototype expects to be driven by
        base.__dict__.update(CONTINUE=True, PAUSE=False, Tuner=_PrototypeBase)
        sys.modules.setdefault("simulate", base)
        module = imported("freeze_thaw_prototype", setting.curves / "freeze_thaw_prototype.py")
        self.problem, space = problem, problem.space
        self.own = problem.cube is not None
        cube = problem.cube or {p.path: ("float", 0.0, 1.0, False) for p in space.parameters}
        described = types.SimpleNamespace(space=cube, max_r=problem.max_t, bench=None)
        self.search = module.FT2(described, seed, setting.startup)
        self.reached: dict[int, int] = {}

    def start(self) -> Training:
        trial, found = self.search.suggest()
        space = self.problem.space
        config = found if self.own else space.config(space.from_unit(list(found.values())))

        def report(r: int, value: float) -> bool:
            self.reached[trial] = r
            return bool(self.search.on_result(trial, r, value if self.problem.mode == "max" else -value))

        return config, self.reached.get(trial, 0), report


class _PrototypeBase:
    def __init__(self, problem: Any) -> None:
        self.config: dict[int, dict[str, Any]] = {}

    def new(self) -> tuple[int, dict[str, Any]]:
        trial = len(self.config)
        self.config[trial] = self.ask(trial)  # type: ignore[attr-defined]
        return trial, self.config[trial]


def played(problem: Problem, contender: Contender, setting: Setting) -> History:
    """Let workers train the trials that a contender starts, until it ends or the time is up."""
    end, order, history = setting.seconds(problem), itertools.count(), []
    heap: list[tuple[float, int, int, Any]] = []

    def start(now: float) -> bool:
        found = contender.start()
        if found is None:
            return False
        config, done, report = found
        values, seconds = problem.curve(config)
        begin = now + setting.startup * problem.full_seconds - (seconds[done - 1] if done else 0.0)
        heapq.heappush(heap, (begin + seconds[done], next(order), done, (values, seconds, begin, report)))
        return True

    while len(heap) < setting.workers and start(0.0):
        pass
    while heap and heap[0][0] <= end:
        now, _, r, run = heapq.heappop(heap)
        values, seconds, begin, report = run
        history.append((now, float(values[r])))
        if report(r + 1, float(values[r])) and r + 1 < len(values):
            heapq.heappush(heap, (begin + seconds[r + 1], next(order), r + 1, run))
        while len(heap) < setting.workers and start(now):
            pass
    return history
