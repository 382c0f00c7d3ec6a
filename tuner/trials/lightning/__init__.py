"""Support for Lightning (`lightning.pytorch` and `pytorch_lightning`).

Use `prepare_trainer` and `ReportCallback` in a trial, `load_model` after a search, and `RayStrategy`, `RayFSDPStrategy`
and `RayModelParallelStrategy` to train on a Ray cluster without tuning.
"""

from tuner.errors import MissingPackage
from tuner.names import with_extra

try:
    from tuner.trials.lightning.load import load_model
    from tuner.trials.lightning.ray_strategy import RayFSDPStrategy, RayModelParallelStrategy, RayStrategy
    from tuner.trials.lightning.report import ReportCallback
    from tuner.trials.lightning.trial import prepare_trainer
except ModuleNotFoundError as error:
    if error.name not in ("torch", "lightning", "pytorch_lightning"):
        raise
    raise MissingPackage(f"tuner.lightning needs PyTorch and Lightning: {with_extra('lightning')} ({error})") from error

__all__ = [
    "RayFSDPStrategy",
    "RayModelParallelStrategy",
    "RayStrategy",
    "ReportCallback",
    "load_model",
    "prepare_trainer",
]
