"""Build schedulers by the names that specs give them. Each scheduler is imported when it is first used.

`from_json` builds a scheduler from ``{"type": "asha", "max_t": 27}``. `from_argument` accepts a name, a dict of this form, a
scheduler, or an object of `ray.tune.schedulers`. CONTRIBUTING.md says what a new scheduler needs.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuner.errors import SpecError
from tuner.options import build, pick
from tuner.schedulers.base import Scheduler

if TYPE_CHECKING:
    from tuner.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
    from tuner.schedulers.asha_promotion import ASHAPromotionScheduler
    from tuner.schedulers.fifo import FIFOScheduler
    from tuner.schedulers.freeze_thaw.scheduler import FreezeThawScheduler
    from tuner.schedulers.hyperband import HyperBandScheduler
    from tuner.schedulers.median import MedianStoppingRule
    from tuner.schedulers.moasha import MOASHAScheduler
    from tuner.schedulers.pbt.pb2 import PB2
    from tuner.schedulers.pbt.replay import PBTReplayScheduler
    from tuner.schedulers.pbt.scheduler import PopulationBasedTraining

# "type" in a spec -> (module, class)
REGISTRY: dict[str, tuple[str, str]] = {
    "fifo": ("fifo", "FIFOScheduler"),
    "asha": ("asha", "ASHAScheduler"),
    "asha_promotion": ("asha_promotion", "ASHAPromotionScheduler"),
    "async_hyperband": ("asha", "AsyncHyperBandScheduler"),
    "freeze_thaw": ("freeze_thaw", "FreezeThawScheduler"),
    "hyperband": ("hyperband", "HyperBandScheduler"),
    "median": ("median", "MedianStoppingRule"),
    "moasha": ("moasha", "MOASHAScheduler"),
    "pb2": ("pbt.pb2", "PB2"),
    "pbt": ("pbt", "PopulationBasedTraining"),
    "pbt_replay": ("pbt.replay", "PBTReplayScheduler"),
}

_INSTEAD_OF_PRUNERS = {
    "HyperbandPruner": "scheduler='hyperband'",
    "MedianPruner": "scheduler='median'",
    "NopPruner": "scheduler='fifo'",
    "PatientPruner": "stop=tuner.stoppers.TrialPlateauStopper(...)",
    "PercentilePruner": "scheduler='median'",
    "SuccessiveHalvingPruner": "scheduler='asha'",
    "ThresholdPruner": "stop={metric: value} or a function",
}

_MODULE_OF = {name: module for module, name in REGISTRY.values()}

__all__ = [
    "PB2",
    "ASHAPromotionScheduler",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "FreezeThawScheduler",
    "HyperBandScheduler",
    "MOASHAScheduler",
    "MedianStoppingRule",
    "PBTReplayScheduler",
    "PopulationBasedTraining",
    "Scheduler",
    "from_argument",
    "from_json",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def from_json(data: Mapping[str, Any], pointer: str = "/scheduler") -> Scheduler:
    """Return the scheduler described by ``{"type": ..., option: value, ...}``.

    Raises:
        SpecError: the type or an option is unknown, or a value is wrong. The error's pointer begins with `pointer`.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f'expected {{"type": ..., ...}}, got {data!r}', pointer)
    return build(_class_of(*pick(data.get("type"), REGISTRY, "scheduler", pointer)), data, pointer)


@functools.cache
def _class_of(module: str, name: str) -> type[Scheduler]:
    found: type[Scheduler] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


def class_of(data: Mapping[str, Any]) -> type[Scheduler] | None:
    """Return the class of the scheduler that `from_json` would return; None if there is no scheduler of this type."""
    place = REGISTRY.get(data.get("type", ""))
    return None if place is None else _class_of(*place)


def has_one_trial(data: Mapping[str, Any]) -> bool:
    """Return `Scheduler.ONE_TRIAL` of the scheduler that `from_json` would return; False if it would raise."""
    kind = class_of(data)
    return kind is not None and kind.ONE_TRIAL


def from_argument(argument: Any, pointer: str = "/scheduler") -> Scheduler:
    """Return the scheduler for an argument that was passed in Python.

    `argument` may be a Scheduler, a name, a dict as for `from_json`, or one of Ray Tune's schedulers.
    """
    if isinstance(argument, Scheduler):
        return argument
    if isinstance(argument, str):
        return from_json({"type": argument}, pointer)
    if isinstance(argument, Mapping):
        return from_json(argument, pointer)
    if any(cls.__module__.startswith("ray.tune.schedulers") for cls in type(argument).__mro__):
        from tuner.schedulers.from_ray import scheduler_from_ray

        return scheduler_from_ray(argument, pointer)
    if any(cls.__module__ == "optuna.pruners._base" for cls in type(argument).__mro__):
        instead = _INSTEAD_OF_PRUNERS.get(type(argument).__name__, "scheduler='asha' or 'median'")
        raise SpecError(f"Optuna's {type(argument).__name__} is not supported; use {instead}", pointer)
    if isinstance(argument, type) and issubclass(argument, Scheduler):
        raise SpecError(f"expected a scheduler, not its class; write {argument.__name__}()", pointer)
    raise SpecError(f"expected a scheduler, its name or its JSON form, got {argument!r}", pointer)
