"""The database: the only place with SQL."""

from tuner.store.experiments import Creation
from tuner.store.records import (
    Across,
    BestPoint,
    Bookmark,
    Changes,
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
    ReportPoint,
    SegmentRecord,
    StreamItem,
    TrialRecord,
    TrialSample,
    TrialSegment,
    UsageSample,
    UsageSeries,
)
from tuner.store.series.curves import Columns as CurveColumns
from tuner.store.service.projects import ProjectSettings
from tuner.store.sql.connect import StoreUnavailable, shown_url
from tuner.store.sql.database import may_have_written, watched_commits
from tuner.store.store import Store

__all__ = [
    "Across",
    "BestPoint",
    "Bookmark",
    "Changes",
    "CheckpointRecord",
    "CodeRecord",
    "CommandRecord",
    "Creation",
    "Curve",
    "CurveColumns",
    "CurveSegment",
    "Curves",
    "DecisionRecord",
    "ExperimentRecord",
    "LogQuery",
    "Page",
    "Progress",
    "ProjectSettings",
    "RankLog",
    "ReportPoint",
    "SegmentRecord",
    "Store",
    "StoreUnavailable",
    "StreamItem",
    "TrialRecord",
    "TrialSample",
    "TrialSegment",
    "UsageSample",
    "UsageSeries",
    "may_have_written",
    "shown_url",
    "watched_commits",
]
