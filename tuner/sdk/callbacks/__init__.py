"""Callbacks that observe a search: your own, and those that write to CSV files, TensorBoard, MLflow and Weights & Biases.

Callbacks run in their own threads, and receive an entry of the search's log only after it is committed. So a callback can
neither slow a search down nor break it. The methods have the same names as in Ray Tune.
"""

from tuner.sdk.callbacks.base import Callback, ObservedTrial
from tuner.sdk.callbacks.files import CSVLoggerCallback, TBXLoggerCallback
from tuner.sdk.callbacks.trackers import MLflowLoggerCallback, WandbLoggerCallback

__all__ = [
    "CSVLoggerCallback",
    "Callback",
    "MLflowLoggerCallback",
    "ObservedTrial",
    "TBXLoggerCallback",
    "WandbLoggerCallback",
]
