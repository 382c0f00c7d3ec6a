"""The methods of the benchmarks, by name: the contenders, the methods of `halving`, and variants of the default search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import halving
from benchmarks.contenders import (
    ETA,
    History,
    Optuna,
    Prototype,
    Random,
    RayASHA,
    Setting,
    changed,
    options_in,
    played,
    simulated,
)
from benchmarks.learning_curves import Problem

HALVING = "halving-"
"""The prefix of the methods of `halving`. They run only if they are named."""

METHODS: dict[str, Callable[[Problem, int, Setting], History]] = {
    "default": simulated,
    "asha": lambda problem, seed, setting: simulated(
        problem, seed, setting, scheduler={"type": "asha", "reduction_factor": ETA}, search_alg="random"
    ),
    "bohb": lambda problem, seed, setting: simulated(
        problem, seed, setting, scheduler={"type": "hyperband", "reduction_factor": ETA}, search_alg="bohb"
    ),
    "hyperband": lambda problem, seed, setting: simulated(
        problem, seed, setting, scheduler={"type": "hyperband", "reduction_factor": ETA}, search_alg="random"
    ),
    "random": lambda problem, seed, setting: played(problem, Random(problem, seed, setting), setting),
    "ray-asha": lambda problem, seed, setting: played(problem, RayASHA(problem, seed, setting), setting),
    "optuna-tpe": lambda problem, seed, setting: played(problem, Optuna(problem, seed, setting, False), setting),
    "optuna-hyperband": lambda problem, seed, setting: played(problem, Optuna(problem, seed, setting, True), setting),
    "prototype": lambda problem, seed, setting: played(problem, Prototype(problem, seed, setting), setting),
}


def names(curves: Path) -> Sequence[str]:
    """Return the methods that can be run, except those of `halving`. Include the prototype only if its file exists."""
    there = (curves / "freeze_thaw_prototype.py").exists()
    return [name for name in METHODS if there or name != "prototype"]


def play(method: str, problem: Problem, seed: int, setting: Setting) -> History:
    """Run a method, or a variant of the default: "NAME:module.CONSTANT=value;option.NAME=value;..."."""
    if method.startswith(HALVING):
        return halving.played(method.removeprefix(HALVING), problem, seed, setting)
    if ":" not in method:
        return METHODS[method](problem, seed, setting)
    changes = method.split(":", 1)[1]
    options = options_in(changes)
    with changed(changes):
        if not options:
            return simulated(problem, seed, setting)
        return simulated(problem, seed, setting, scheduler={"type": "freeze_thaw", **options})
