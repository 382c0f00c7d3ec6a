"""Callbacks that observe a search: your own, and those that write to CSV files, TensorBoard, MLflow and Weights & Biases.

They are called from threads of their own, with what the durable log of the search has, after it was committed. So a callback can
neither slow a search down nor break it. Methods are named as in Ray Tune.
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
