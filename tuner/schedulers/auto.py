"""What ``scheduler="auto"``, the default, stands for, and why, in words for the experiment's log.

The choices follow from `benchmarks/quality.py`; `docs/freeze_thaw.md` has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.schedulers import from_json
from tuner.schedulers.base import Scheduler, Setting

FEW = 4
"""Up to so many trials there is nothing to choose from: all are trained to the end."""

MOST_FOR_GP = 200
"""Optuna's Gaussian process is ahead of its TPE up to about here, and too slow beyond."""

MODELS = ("tpe", "gp", "cmaes", "nsgaii", "optuna", "ray")
"""Searchers that learn from the values of trials, and are misled by trials that were stopped early."""


def resolve(
    setting: Setting,
    saves_checkpoints: bool | None = None,
    *,
    objectives: int = 1,
    searcher_given: bool = False,
    searcher: str | None = None,
) -> tuple[Scheduler, Mapping[str, Any], str]:
    """The scheduler (not yet set up), the searcher's JSON, which counts where the user named none, and the reason.

    saves_checkpoints: whether the trainable is known to save checkpoints, or known not to; None: not known.
    searcher: the type of the searcher that the user named, where `searcher_given`.
    """
    kind, search, why = _choice(
        setting, saves_checkpoints, objectives, searcher if searcher_given else None, searcher_given
    )
    return from_json({"type": kind}), search, f"scheduler auto: {why}"


def _choice(
    setting: Setting, saves_checkpoints: bool | None, objectives: int, searcher: str | None, given: bool
) -> tuple[str, dict[str, Any], str]:
    space, samples, end = setting.space, setting.num_samples, setting.max_t
    if objectives > 1:
        return (
            "fifo",
            {"type": "tpe"},
            f"fifo with tpe, since early stopping looks at one objective only and there are {objectives}",
        )
    if space.has_grid and not given:
        if end is None:
            return "fifo", {"type": "grid"}, "fifo, since without max_t there is no early stopping, over the grid"
        return "asha", {"type": "grid"}, f"asha up to max_t {end} over the grid"
    if not len(space):
        return "fifo", {"type": "random"}, "fifo, since the space has no parameters to choose"
    if given:
        if end is None or searcher in MODELS:
            lack = (
                "without max_t there is no early stopping"
                if end is None
                else f"{searcher} learns best from full trainings"
            )
            return "fifo", {"type": "random"}, f"fifo, since {lack}"
        return "asha", {"type": "random"}, f"asha up to max_t {end} with the searcher that was asked for"
    if end is None:
        if samples is not None and samples <= MOST_FOR_GP and not any(p.condition for p in space.parameters):
            why = f"fifo with gp, since without max_t there is no early stopping and {samples} trials are few"
            return "fifo", {"type": "gp"}, why
        return "fifo", {"type": "tpe"}, "fifo with tpe, since without max_t there is no early stopping"
    if samples is not None and samples <= FEW:
        return "fifo", {"type": "qmc"}, f"fifo, since {samples} trials are too few to stop some early"
    known = (
        "" if saves_checkpoints is not False else "; the trainable saves no checkpoints, so a paused trial starts anew"
    )
    return (
        "freeze_thaw",
        {"type": "random"},
        f"freeze_thaw up to max_t {end}: a model of the learning curves decides{known}",
    )
