"""Distributed hyperparameter tuning. The public names; each is loaded when it is first used.

`import tuner` loads neither torch nor ray nor sqlalchemy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "tuner.space": (
        "choice", "grid_search", "lograndint", "loguniform", "qlograndint", "qloguniform", "qrandint", "qrandn", "quniform",
        "randint", "randn", "sample_from", "uniform",
    ),
    "tuner.schedulers": (
        "ASHAPromotionScheduler", "ASHAScheduler", "AsyncHyperBandScheduler", "FIFOScheduler", "FreezeThawScheduler",
        "HyperBandScheduler", "MedianStoppingRule", "PopulationBasedTraining",
    ),
    "tuner.errors": ("CheckpointError", "EntrypointError", "PlacementError", "SpecError", "TrialError", "TunerError"),
    "tuner.trials.training.session": ("get_checkpoint", "get_context", "report", "should_checkpoint"),
    "tuner.trials.checkpoints.checkpoints": ("Checkpoint",),
    "tuner.trials.checkpoints.objects": ("with_parameters",),
    "tuner.driver.virtual": ("Step", "simulate"),
    "tuner.driver.kept": ("shutdown",),
    "tuner.runner": ("Result", "resume", "run"),
}  # fmt: skip
_MODULES = {
    "torch": "tuner.torch",
    "lightning": "tuner.lightning",
    "stoppers": "tuner.schedulers.stoppers",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES])

if TYPE_CHECKING:
    from tuner.driver.kept import shutdown as shutdown
    from tuner.driver.virtual import Step as Step
    from tuner.driver.virtual import simulate as simulate
    from tuner.errors import SpecError as SpecError
    from tuner.errors import TunerError as TunerError
    from tuner.runner import Result as Result
    from tuner.runner import resume as resume
    from tuner.runner import run as run
    from tuner.space import choice as choice
    from tuner.space import grid_search as grid_search
    from tuner.space import loguniform as loguniform
    from tuner.space import randint as randint
    from tuner.space import uniform as uniform


def __getattr__(name: str) -> Any:
    if home := _HOME_OF.get(name):
        value = getattr(importlib.import_module(home), name)
    elif module := _MODULES.get(name):
        value = importlib.import_module(module)
    else:
        raise AttributeError(f"module 'tuner' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
