"""The types of the API's answers. The OpenAPI document and the page's TypeScript are made from them.

Times are RFC 3339 in UTC. NaN and infinities are null.
"""

from __future__ import annotations

from tuner.api.schemas.changes import Changes, Improvement, Point, stream_data
from tuner.api.schemas.curves import (
    BestSoFar,
    BestSoFarOf,
    Curves,
    CurveSegment,
    MetricCurve,
    Series,
    TrialCurves,
    mode_of,
)
from tuner.api.schemas.decisions import Decision, DecisionKind, DecisionPage
from tuner.api.schemas.experiments import (
    Best,
    Configuration,
    Counts,
    DryRun,
    Experiment,
    ExperimentPage,
    Finished,
    Importances,
    Objective,
    Resolved,
    Share,
    labels,
)
from tuner.api.schemas.forms import (
    WORDS,
    ErrorItem,
    Json,
    Model,
    Number,
    PageOf,
    Problem,
    Timestamp,
    rfc3339,
    rfc3339_or_none,
    shown,
)
from tuner.api.schemas.health import Health
from tuner.api.schemas.lineage import Change, Lineage, LineageSegment, ScheduleEntry
from tuner.api.schemas.ranks import Live, LiveRank, LogItem, Logs, Usage, UsageSeries
from tuner.api.schemas.trials import (
    Checkpoint,
    Failure,
    Segment,
    SegmentItem,
    SegmentPage,
    Trial,
    TrialDetail,
    TrialPage,
)

__all__ = [
    "WORDS",
    "Best",
    "BestSoFar",
    "BestSoFarOf",
    "Change",
    "Changes",
    "Checkpoint",
    "Configuration",
    "Counts",
    "CurveSegment",
    "Curves",
    "Decision",
    "DecisionKind",
    "DecisionPage",
    "DryRun",
    "ErrorItem",
    "Experiment",
    "ExperimentPage",
    "Failure",
    "Finished",
    "Health",
    "Importances",
    "Improvement",
    "Json",
    "Lineage",
    "LineageSegment",
    "Live",
    "LiveRank",
    "LogItem",
    "Logs",
    "MetricCurve",
    "Model",
    "Number",
    "Objective",
    "PageOf",
    "Point",
    "Problem",
    "Resolved",
    "ScheduleEntry",
    "Segment",
    "SegmentItem",
    "SegmentPage",
    "Series",
    "Share",
    "Timestamp",
    "Trial",
    "TrialCurves",
    "TrialDetail",
    "TrialPage",
    "Usage",
    "UsageSeries",
    "labels",
    "mode_of",
    "rfc3339",
    "rfc3339_or_none",
    "shown",
    "stream_data",
]
