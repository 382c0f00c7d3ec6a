"""Support for Lightning (`lightning.pytorch` and `pytorch_lightning`).

In a trial: `prepare_trainer` and `ReportCallback`. Without tuning: `RayStrategy`, `RayFSDPStrategy` and
`RayModelParallelStrategy`.
"""

from tuner.trials.lightning.ray_strategy import RayFSDPStrategy, RayModelParallelStrategy, RayStrategy
from tuner.trials.lightning.report import ReportCallback
from tuner.trials.lightning.trial import prepare_trainer

__all__ = ["RayFSDPStrategy", "RayModelParallelStrategy", "RayStrategy", "ReportCallback", "prepare_trainer"]
