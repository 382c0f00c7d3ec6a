"""The database: the only place with SQL."""

from tuner.store.connect import StoreUnavailable, shown_url
from tuner.store.records import (
    CheckpointRecord,
    CodeRecord,
    CommandRecord,
    Curve,
    Curves,
    CurveSegment,
    DecisionRecord,
    ExperimentRecord,
    LogChunk,
    Page,
    Progress,
    SegmentRecord,
    StreamItem,
    TrialRecord,
    TrialSegment,
    UsageSample,
    UsageSeries,
)
from tuner.store.store import Store

__all__ = [
    "CheckpointRecord",
    "CodeRecord",
    "CommandRecord",
    "Curve",
    "CurveSegment",
    "Curves",
    "DecisionRecord",
    "ExperimentRecord",
    "LogChunk",
    "Page",
    "Progress",
    "SegmentRecord",
    "Store",
    "StoreUnavailable",
    "StreamItem",
    "TrialRecord",
    "TrialSegment",
    "UsageSample",
    "UsageSeries",
    "shown_url",
]
