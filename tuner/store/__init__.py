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
    LogQuery,
    Page,
    Progress,
    RankLog,
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
    "LogQuery",
    "Page",
    "Progress",
    "RankLog",
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
