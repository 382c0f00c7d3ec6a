"""Choose the scheduler and searcher for ``scheduler="auto"``, the default, and give the reason.

The choices follow from `benchmarks/quality.py`; `docs/freeze_thaw.md` has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.plurals import counted
from tuner.schedulers import from_json
from tuner.schedulers.base import Scheduler, SchedulerContext

FEW = 4
"""The maximum number of trials in a search that trains all of them to the end."""

MOST_FOR_GP = 200
"""Up to about this many trials, Optuna's Gaussian process does better than its TPE. With more trials, it is too slow."""

MODELS = ("tpe", "gp", "cmaes", "nsgaii", "optuna", "ray")
"""Searchers that learn from the results of trials. Results of trials that were stopped early mislead them."""


def resolve(
    context: SchedulerContext,
    saves_checkpoints: bool | None = None,
    *,
    objectives: int = 1,
    searcher_given: bool = False,
    searcher: str | None = None,
) -> tuple[Scheduler, Mapping[str, Any], str]:
    """Return the scheduler, the searcher and the reason for choosing them.

    Args:
        context: the facts about the experiment.
        saves_checkpoints: whether the trainable saves checkpoints; None if that is not known.
        objectives: how many objectives the experiment has.
        searcher_given: True if the user named a searcher.
        searcher: the type of the searcher that the user named.

    Returns:
        The scheduler, whose `setup` is still to be called; the JSON form of the searcher to use if the user named none; and the
        reason to write to the experiment's log.
    """
    kind, search, why = _choice(
        context, saves_checkpoints, objectives, searcher if searcher_given else None, searcher_given
    )
    return from_json({"type": kind}), search, f"scheduler auto: {why}"


def _choice(
    context: SchedulerContext, saves_checkpoints: bool | None, objectives: int, searcher: str | None, given: bool
) -> tuple[str, dict[str, Any], str]:
    space, samples, end = context.space, context.num_samples, context.max_t
    if objectives > 1:
        kind = "grid" if space.has_grid else "tpe"
        because = (
            f"there are {objectives} objectives; of the schedulers that stop trials early, only moasha supports several"
        )
        return "fifo", {"type": kind}, f"fifo{'' if given else f' with {kind}'}, since {because}"
    if space.has_grid and not given:
        if end is None:
            return "fifo", {"type": "grid"}, "fifo over the grid, since early stopping needs max_t"
        return "asha", {"type": "grid"}, f"asha over the grid, with max_t {end}"
    if not len(space):
        return "fifo", {"type": "random"}, "fifo, since the space has no parameters"
    if given:
        if searcher == "bohb" and end is not None:
            return "hyperband", {"type": "random"}, f"hyperband with max_t {end}, because bohb learns from its levels"
        if end is None or searcher in MODELS:
            cause = (
                "early stopping needs max_t"
                if end is None
                else f"{searcher} learns best from trials that ran to the end"
            )
            return "fifo", {"type": "random"}, f"fifo, since {cause}"
        return "asha", {"type": "random"}, f"asha with max_t {end} and the given searcher"
    if end is None:
        if samples is not None and samples <= MOST_FOR_GP and not any(p.condition for p in space.parameters):
            why = f"fifo with gp, since early stopping needs max_t and gp is the best searcher for {counted(samples, 'trial')}"
            return (
                "fifo",
                {"type": "gp", "tpe_if_short": True},
                f"{why}; tpe while trials take less than 1 s",
            )
        return "fifo", {"type": "tpe"}, "fifo with tpe, since early stopping needs max_t"
    if samples is not None and samples <= FEW:
        trials = "1 trial is" if samples == 1 else f"{samples} trials are"
        return "fifo", {"type": "qmc"}, f"fifo, since {trials} too few for early stopping"
    known = (
        ""
        if saves_checkpoints is not False
        else "; the trainable saves no checkpoints, so a resumed trial starts from the beginning"
    )
    return (
        "freeze_thaw",
        {"type": "random"},
        f"freeze_thaw with max_t {end}: a model of the learning curves decides which trials to train{known}",
    )
