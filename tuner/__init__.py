"""Distributed hyperparameter tuning. Each public name is loaded when it is first used.

`import tuner` loads neither torch nor ray nor sqlalchemy.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if sys.hexversion < 0x030B00F0:  # an import from a checkout; pip refuses to install it
    raise ImportError(
        f"tuner needs Python 3.11 or newer, but {sys.executable} is Python {sys.version.split()[0]}: "
        "create an environment with a newer Python, and install tuner there"
    )

from tuner.trials import moved as _moved

_moved.install()  # registers the old names of moved modules, so that pickles of earlier versions can be loaded

# In a script that runs as a trial, this file tells the rank that the script imports tuner and reports its metrics itself.
if _folder := os.environ.get("_TUNER_SCRIPT"):
    with suppress(OSError), open(os.path.join(_folder, "imported"), "w", encoding="utf-8"):
        pass

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "tuner.space": (
        "choice", "grid_search", "lograndint", "loguniform", "qlograndint", "qloguniform", "qrandint", "qrandn", "quniform",
        "randint", "randn", "sample_from", "uniform",
    ),
    "tuner.schedulers": (
        "ASHAPromotionScheduler", "ASHAScheduler", "AsyncHyperBandScheduler", "FIFOScheduler", "FreezeThawScheduler",
        "HyperBandScheduler", "MOASHAScheduler", "MedianStoppingRule", "PB2", "PBTReplayScheduler",
        "PopulationBasedTraining",
    ),
    "tuner.errors": ("CheckpointError", "EntrypointError", "PlacementError", "SpecError", "TrialError", "TunerError"),
    "tuner.trials.training.session": ("get_checkpoint", "get_context", "report", "should_checkpoint"),
    "tuner.trials.checkpoints.checkpoints": ("Checkpoint",),
    "tuner.trials.checkpoints.objects": ("with_parameters",),
    "tuner.driver.virtual": ("Step", "simulate"),
    "tuner.sdk.executors": ("shutdown",),
    "tuner.sdk.replay": ("recommend_scheduler", "replay"),
    "tuner.client.asynchronous": ("connect_async",),
    "tuner.client.synchronous": ("connect",),
    "tuner.sdk.run": ("Result", "resume", "run"),
    "tuner.sdk.observe": ("observe",),
    "tuner.sdk.imports": ("import_optuna", "import_ray"),
    "tuner.sdk.study": ("create_study",),
    "tuner.sdk.saved": ("experiments", "load"),
    "tuner.serving.exports": ("export",),
}  # fmt: skip
_MODULES = {
    "torch": "tuner.torch",
    "lightning": "tuner.lightning",
    "schedulers": "tuner.schedulers",
    "search": "tuner.search",
    "serving": "tuner.serving",
    "stoppers": "tuner.schedulers.stoppers",
    "callbacks": "tuner.sdk.callbacks",
}
_INSTEAD = {  # names of Ray Tune and Optuna that this package does not have, and what to write instead
    "CLIReporter": "tuner.run takes verbose=",
    "Callback": "it is tuner.callbacks.Callback",
    "CheckpointConfig": "tuner.run takes checkpoint=, such as {'keep_last': 2}",
    "ConcurrencyLimiter": "tuner.run takes max_concurrent_trials=",
    "FailureConfig": "tuner.run takes max_failures=",
    "HyperBandForBOHB": "tuner.run takes scheduler='hyperband' with search_alg='bohb'",
    "PopulationBasedTrainingReplay": "it is tuner.PBTReplayScheduler",
    "ResultGrid": "it is tuner.Result",
    "RunConfig": "tuner.run takes its parts as arguments, or a ray.tune.RunConfig as run_config=",
    "ScalingConfig": "tuner.run takes num_workers= and use_gpu=, or a ray.train.ScalingConfig as scaling_config=",
    "Stopper": "tuner.run takes any ray.tune.Stopper or function as stop=; tuner.stoppers has more",
    "Trainable": "tuner.run takes any class with setup, step, save and load, or a ray.tune.Trainable",
    "TrialPruned": "raise optuna.TrialPruned",
    "TuneConfig": "tuner.run takes its parts as arguments, or a ray.tune.TuneConfig as tune_config=",
    "Tuner": "tuner.run(train, space, metric=..., mode=...) runs a search, and tuner.resume(name) continues one",
    "pruners": "tuner.schedulers has what stops trials early",
    "samplers": "tuner.search has the searchers, and search_alg= of tuner.run takes Optuna's samplers",
    "with_resources": "tuner.run takes resources_per_worker=, such as {'CPU': 2, 'GPU': 1}",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES])

if TYPE_CHECKING:  # the public names for type checkers, which cannot read `_HOMES`; a test compares both
    from tuner import lightning as lightning
    from tuner import schedulers as schedulers
    from tuner import search as search
    from tuner import serving as serving
    from tuner import torch as torch
    from tuner.client.asynchronous import connect_async as connect_async
    from tuner.client.synchronous import connect as connect
    from tuner.driver.virtual import Step as Step
    from tuner.driver.virtual import simulate as simulate
    from tuner.errors import CheckpointError as CheckpointError
    from tuner.errors import EntrypointError as EntrypointError
    from tuner.errors import PlacementError as PlacementError
    from tuner.errors import SpecError as SpecError
    from tuner.errors import TrialError as TrialError
    from tuner.errors import TunerError as TunerError
    from tuner.schedulers import PB2 as PB2
    from tuner.schedulers import ASHAPromotionScheduler as ASHAPromotionScheduler
    from tuner.schedulers import ASHAScheduler as ASHAScheduler
    from tuner.schedulers import AsyncHyperBandScheduler as AsyncHyperBandScheduler
    from tuner.schedulers import FIFOScheduler as FIFOScheduler
    from tuner.schedulers import FreezeThawScheduler as FreezeThawScheduler
    from tuner.schedulers import HyperBandScheduler as HyperBandScheduler
    from tuner.schedulers import MedianStoppingRule as MedianStoppingRule
    from tuner.schedulers import MOASHAScheduler as MOASHAScheduler
    from tuner.schedulers import PBTReplayScheduler as PBTReplayScheduler
    from tuner.schedulers import PopulationBasedTraining as PopulationBasedTraining
    from tuner.schedulers import stoppers as stoppers
    from tuner.sdk import callbacks as callbacks
    from tuner.sdk.executors import shutdown as shutdown
    from tuner.sdk.imports import import_optuna as import_optuna
    from tuner.sdk.imports import import_ray as import_ray
    from tuner.sdk.observe import observe as observe
    from tuner.sdk.replay import recommend_scheduler as recommend_scheduler
    from tuner.sdk.replay import replay as replay
    from tuner.sdk.run import Result as Result
    from tuner.sdk.run import resume as resume
    from tuner.sdk.run import run as run
    from tuner.sdk.saved import experiments as experiments
    from tuner.sdk.saved import load as load
    from tuner.sdk.study import create_study as create_study
    from tuner.serving.exports import export as export
    from tuner.space import choice as choice
    from tuner.space import grid_search as grid_search
    from tuner.space import lograndint as lograndint
    from tuner.space import loguniform as loguniform
    from tuner.space import qlograndint as qlograndint
    from tuner.space import qloguniform as qloguniform
    from tuner.space import qrandint as qrandint
    from tuner.space import qrandn as qrandn
    from tuner.space import quniform as quniform
    from tuner.space import randint as randint
    from tuner.space import randn as randn
    from tuner.space import sample_from as sample_from
    from tuner.space import uniform as uniform
    from tuner.trials.checkpoints.checkpoints import Checkpoint as Checkpoint
    from tuner.trials.checkpoints.objects import with_parameters as with_parameters
    from tuner.trials.training.session import get_checkpoint as get_checkpoint
    from tuner.trials.training.session import get_context as get_context
    from tuner.trials.training.session import report as report
    from tuner.trials.training.session import should_checkpoint as should_checkpoint

else:  # Type checkers must not see this `__getattr__`. Otherwise they would accept every name.

    def __getattr__(name: str) -> Any:
        if home := _HOME_OF.get(name):
            value = getattr(importlib.import_module(home), name)
        elif module := _MODULES.get(name):
            value = importlib.import_module(module)
        else:
            instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(
                f"module 'tuner' has no attribute {name!r}{instead}", name=name, obj=sys.modules[__name__]
            )
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
