"""The types of the API's answers. The OpenAPI document and the page's TypeScript are made from them.

Times are RFC 3339 in UTC. NaN and infinities are null.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from tuner.domain.events import Command
from tuner.domain.experiment import Limits, Scaling
from tuner.domain.keys import trial_id
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Cause
from tuner.experiment.lineage import Link, schedule
from tuner.experiment.preview import Importance, Preview
from tuner.experiment.usecases import how_to_go_on
from tuner.experiment.verbs import actions
from tuner.space import Space
from tuner.store import Changes as ChangesRecord
from tuner.store import (
    Curve,
    DecisionRecord,
    ExperimentRecord,
    RankLog,
    ReportPoint,
    SegmentRecord,
    StreamItem,
    TrialRecord,
    TrialSegment,
)
from tuner.store import Curves as CurvesRecord
from tuner.store import CurveSegment as CurveSegmentRecord
from tuner.store import UsageSeries as UsageRecord
from tuner.store.records import About

T = TypeVar("T")
Json = dict[str, Any]
Number = float | None
DecisionKind = Literal[
    "start", "resume", "pause", "stop", "complete", "exploit", "retry", "fail", "cancel", "finish", "note"
]


def rfc3339(time: float) -> str:
    """Return seconds since 1970 as ``2026-01-31T12:00:00.123456Z``. A time that no calendar has becomes 1970-01-01."""
    if not math.isfinite(time) or not 0 <= time < 253_402_300_800:
        time = 0.0
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def rfc3339_or_none(time: float | None) -> str | None:
    return None if time is None else rfc3339(time)


def _as_text(time: Any) -> Any:
    return rfc3339(time) if isinstance(time, float | int) else time


Timestamp = Annotated[str, BeforeValidator(_as_text), Field(json_schema_extra={"format": "date-time"})]
"""A time. Made from seconds since 1970."""


WORDS = {
    "action": "a verb",
    "best_value": "the best value of the first objective, within the constraints",
    "cause": "why it was started",
    "checkpoint_id": "its checkpoint; null if none is kept",
    "created_at": "when it was created",
    "ended_at": "when it reached its final state",
    "experiment_id": "exp_...",
    "items": "what was asked for, in the order of the route",
    "iteration": "training_iteration, the count of the trial's reports",
    "max_t": "value of time_attr at which a trial is complete",
    "metric": "the name of the metric",
    "mode": "whether the metric is minimised or maximised",
    "name": "the name of the experiment",
    "num_samples": "trials to start; null: until the time budget is spent",
    "number": "counts the trials of the experiment from 0",
    "ordinal": "counts the segments of the trial from 1",
    "params": 'the configuration, flat: "optimizer/lr" -> value',
    "rank": "the rank, from 0",
    "reason": "the reason, in words",
    "segment": "the ordinal of the segment",
    "segments": "one item for each segment, in the order in which they ran",
    "source_checkpoint_id": "the checkpoint that it started from, if any",
    "source_trial_number": "the trial that saved that checkpoint",
    "start_iteration": "training_iteration of the checkpoint that it started from; 0 without one",
    "started_at": "when it started; null before",
    "state": "where it is in its life",
    "time_attr": "what max_t counts",
    "trial_id": "trl_...",
    "trial_number": "counts the trials of the experiment from 0",
    "value": "the value of the first objective",
    "x": "the horizontal axis",
    "y": "the values of the metric",
}
"""What a field means that means the same wherever it occurs. Other fields say it themselves."""


def _describe(schema: dict[str, Any]) -> None:
    for name, field in schema.get("properties", {}).items():
        if name in WORDS:
            field.setdefault("description", WORDS[name])


class Model(BaseModel):
    model_config = ConfigDict(
        ser_json_inf_nan="null", json_schema_serialization_defaults_required=True, json_schema_extra=_describe
    )


def shown(record: type, leave_out: Container[str] = ()) -> type[Model]:
    """Return a model with the fields of a record that have an `About`, under the names and in the forms of the API."""
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        about = next((mark for mark in get_args(hint) if isinstance(mark, About)), None)
        if about is not None and name not in leave_out:
            plain = get_args(hint)[0]
            if name.endswith("_at"):
                plain = Timestamp | None if type(None) in get_args(plain) else Timestamp
            fields[about.name or name] = (plain, Field(validation_alias=name, description=about.text))
    return create_model(record.__name__, __base__=Model, **fields)


class PageOf(Model, Generic[T]):
    items: list[T]
    next_page_token: Annotated[str | None, Field(description="of the next page; null on the last one")] = None


class ErrorItem(Model):
    pointer: Annotated[str, Field(description="JSON pointer to the field; empty for the whole document")]
    message: Annotated[str, Field(description="what is wrong, what was expected, and what is near")]


class Problem(Model):
    """An error, as RFC 9457 defines it."""

    type: Annotated[str, Field(description="always about:blank")] = "about:blank"
    title: Annotated[str, Field(description="the phrase of the status")]
    status: Annotated[int, Field(description="the status of the answer")]
    detail: Annotated[str, Field(description="what is wrong, in a sentence")]
    errors: Annotated[list[ErrorItem], Field(description="each mistake with the field that it is about")] = []


class Counts(Model):
    pending: Annotated[int, Field(description="trials that are pending")] = 0
    running: Annotated[int, Field(description="trials that are running")] = 0
    paused: Annotated[int, Field(description="trials that are paused")] = 0
    completed: Annotated[int, Field(description="trials that are completed")] = 0
    stopped: Annotated[int, Field(description="trials that are stopped")] = 0
    failed: Annotated[int, Field(description="trials that are failed")] = 0
    cancelled: Annotated[int, Field(description="trials that are cancelled")] = 0


class Finished(Model):
    """The trial that was trained to its end with the best last value."""

    trial_id: str
    trial_number: int
    value: Annotated[Number, Field(description="its last value")]
    iteration: int | None
    params: Json
    checkpoint_id: str | None


class Best(Model):
    """The best report within the constraints or, with scope "last", the trial with the best last report."""

    trial_id: str
    trial_number: int
    value: Number
    iteration: int | None
    params: Annotated[Json, Field(description="of the segment that reported this value")]
    checkpoint_id: str | None
    finished: Annotated[Finished | None, Field(description="null if no trial was trained to its end")] = None


class Objective(Model):
    metric: str
    mode: Literal["min", "max"]


class Resolved(Model):
    """What the requested scheduler and search mean in this experiment."""

    scheduler: Annotated[Json, Field(description='what "auto" stands for, with all options and what it inherits')]
    search: Annotated[Json | None, Field(description="null if the scheduler proposes configurations itself")]
    constraints: Annotated[Json, Field(description='what results must satisfy: {"size": {"max": 0.25}}')] = {}
    budget: Annotated[str | None, Field(description="what the search may spend and how to raise it, in words")] = None


class Experiment(Model):
    id: Annotated[str, Field(description="exp_...")]
    name: str
    state: ExperimentState
    metric: Annotated[str, Field(description="the first objective, the one that schedulers look at")]
    mode: Literal["min", "max"]
    objectives: Annotated[
        list[Objective], Field(description="all objectives; the first is the one that schedulers look at")
    ]
    created_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None
    num_samples: int | None
    max_t: int | None
    time_attr: str
    seed: Annotated[int, Field(description="searches with the same seed draw the same configurations")]
    space: Annotated[Json, Field(description="the search space, in its JSON form")]
    search: Annotated[Json, Field(description="as asked for; see resolved")]
    scheduler: Annotated[Json, Field(description="as asked for; see resolved")]
    resolved: Annotated[Resolved | None, Field(description="null if an older version created it")]
    method: Annotated[str, Field(description='in a few words: "tpe + asha", "freeze_thaw (auto)"')]
    stop: Annotated[Json, Field(description="when a trial is complete, besides max_t")]
    scaling: Annotated[Scaling, Field(description="the worker group of each trial")]
    limits: Annotated[Limits, Field(description="with defaults filled in")]
    entrypoint: Annotated[str | None, Field(description="null if the function travels by value")]
    source: Annotated[
        str,
        Field(description="python or api: where it was created; adopted: created in Python, now driven by a service"),
    ]
    abandoned: Annotated[
        bool, Field(description="its script is gone and no driver has it; it continues when it is resumed")
    ]
    how_to_go_on: Annotated[str | None, Field(description="if it is abandoned, what to do, in words")]
    metrics: Annotated[list[str], Field(description="names reported so far")]
    counts: Annotated[Counts, Field(description="trials by state")]
    trials: Annotated[int, Field(description="how many trials there are")]
    best: Annotated[Best | None, Field(description="the best trial so far")]
    no_best: Annotated[str | None, Field(description="why `best` is null although trials have reported")]
    labels: Annotated[
        dict[str, list[Any]],
        Field(description="what the values of a parameter stand for, if they are indices of choices"),
    ]
    reason: str
    error: Annotated[str | None, Field(description="why it failed, in words")]
    last_event_seq: Annotated[int, Field(description="the place in the log up to which this is true")]
    actions: Annotated[list[Command], Field(description="the verbs that its state allows now")]

    @classmethod
    def of(cls, record: ExperimentRecord, metrics: list[str]) -> Experiment:
        spec = record.spec
        counts = Counts(**{str(state): record.counts.get(str(state), 0) for state in TrialState})
        now = time.time()
        abandoned = record.abandoned(now)
        return cls(
            id=record.public_id,
            name=spec.name,
            state=record.state,
            metric=spec.objective.metric,
            mode=spec.objective.mode,
            objectives=[Objective(metric=o.metric, mode=o.mode) for o in spec.objectives],
            created_at=rfc3339(record.created_at),
            started_at=rfc3339_or_none(record.started_at),
            ended_at=rfc3339_or_none(record.ended_at),
            num_samples=spec.num_samples,
            max_t=spec.max_t,
            time_attr=spec.time_attr,
            seed=spec.seed,
            space=dict(spec.space),
            search=dict(spec.search),
            scheduler=dict(spec.scheduler),
            resolved=Resolved(**spec.resolved) if spec.resolved else None,
            method=spec.method,
            stop=dict(spec.stop),
            scaling=spec.scaling,
            limits=spec.limits,
            entrypoint=spec.entrypoint,
            source=record.source,
            abandoned=abandoned,
            how_to_go_on=how_to_go_on(record) if abandoned else None,
            metrics=metrics,
            counts=counts,
            trials=sum(counts.model_dump().values()),
            best=_best(record),
            no_best=record.no_best,
            labels=labels(json.dumps(dict(spec.space))),
            reason=record.reason,
            error=record.error,
            last_event_seq=record.last_event_seq,
            actions=actions(record, now),
        )


class Configuration(Model):
    params: Annotated[Json, Field(description='flat: "optimizer/lr" -> value')]
    config: Annotated[Json, Field(description="what the function would get")]


class DryRun(Model):
    """What creating this experiment would lead to."""

    name: str
    metric: str
    mode: Literal["min", "max"]
    scheduler: Annotated[Json, Field(description='what "auto" stands for, with all options and what it inherits')]
    search: Annotated[Json, Field(description='what "auto" stands for, with all options')]
    notes: Annotated[list[str], Field(description="why these, and other defaults that were chosen, in words")]
    num_samples: Annotated[int | None, Field(description="trials to be started; null: until the time budget is spent")]
    max_t: int | None
    time_attr: str
    scaling: Annotated[Scaling, Field(description="the worker group of each trial")]
    limits: Annotated[Limits, Field(description="with defaults filled in")]
    configurations: Annotated[
        list[Configuration], Field(description="of the first trials, as long as no result is known")
    ]

    @classmethod
    def of(cls, found: Preview) -> DryRun:
        spec = found.spec
        return cls(
            name=spec.name,
            metric=spec.objective.metric,
            mode=spec.objective.mode,
            scheduler=dict(found.scheduler),
            search=dict(found.search),
            notes=list(found.notes),
            num_samples=found.num_samples,
            max_t=found.max_t,
            time_attr=spec.time_attr,
            scaling=spec.scaling,
            limits=spec.limits,
            configurations=[Configuration(params=dict(p), config=dict(c)) for p, c in found.configurations],
        )


class Share(Model):
    parameter: Annotated[str, Field(description="its name, flat")]
    share: Annotated[float, Field(description="from 0 to 1")]


class Importances(Model):
    metric: str
    items: Annotated[list[Share], Field(description="the most important first, together 1; empty with too few results")]
    trials: Annotated[int, Field(description="ended trials with a result")]
    needed: Annotated[int, Field(description="how many of them there must be")]
    left_out: Annotated[int, Field(description="ended trials that were not used; at most 5,000 are, evenly spaced")]

    @classmethod
    def of(cls, found: Importance) -> Importances:
        items = [Share(parameter=name, share=share) for name, share in found.shares.items()]
        return cls(metric=found.metric, items=items, trials=found.trials, needed=found.needed, left_out=found.left_out)


class ExperimentPage(PageOf[Experiment]):
    pass


class Failure(Model):
    kind: Annotated[
        Literal["user", "system", "placement", "spec"],
        Field(
            description="user: its code; system: a node, a process or a device; placement: no room; spec: it cannot work"
        ),
    ]
    cause: Annotated[str, Field(description="exception, signal, exit, oom, hang, node_lost, ...")]
    message: Annotated[str, Field(description="one line: what went wrong")]
    rank: Annotated[int | None, Field(description="the rank that failed first")]
    node: Annotated[str | None, Field(description="the node of that rank")]
    pid: Annotated[int | None, Field(description="the process of that rank")]
    traceback: Annotated[str, Field(description="its Python traceback")]
    log_tail: Annotated[str, Field(description="the last lines that it printed")]
    stacks: Annotated[dict[str, str], Field(description="rank -> stack, if the ranks were hung")]


class Checkpoint(Model):
    id: Annotated[str, Field(description="ckpt_...")]
    uri: Annotated[str, Field(description="where it is stored")]
    step: Annotated[int, Field(description="training_iteration of the report that saved it")]
    bytes: Annotated[int, Field(description="its size")]
    node: Annotated[
        str | None,
        Field(
            description="Ray's id of the node that wrote it; its disk has it, unless nodes share the path. null at a URI"
        ),
    ] = None


class Segment(shown(SegmentRecord, leave_out=("source_ordinal",))):  # type: ignore[misc]
    """One uninterrupted execution of a trial, with one configuration and one starting checkpoint."""


class SegmentItem(shown(SegmentRecord, leave_out=("public_id", "source_checkpoint", "placement"))):  # type: ignore[misc]
    """A segment in the list of all segments of an experiment."""

    trial_number: Annotated[int, Field(description="the number of its trial")]

    @classmethod
    def of(cls, item: TrialSegment) -> Self:
        values = {field.name: getattr(item.segment, field.name) for field in dataclasses.fields(item.segment)}
        return cls(**values, trial_number=item.trial)


class SegmentPage(PageOf[SegmentItem]):
    pass


class Trial(shown(TrialRecord)):  # type: ignore[misc]
    """A trial. `TrialRecord` declares its fields; those here have a form of their own in the API."""

    last: Annotated[dict[str, Number], Field(description="the newest value of each metric")]
    error: Annotated[
        Failure | None, Field(validation_alias="failure", description="the latest failure, even if a retry followed")
    ]
    checkpoint: Annotated[Checkpoint | None, Field(description="the newest usable checkpoint")]

    @classmethod
    def of(cls, record: TrialRecord) -> Self:
        found: Self = cls.model_validate(record, from_attributes=True)
        return found


class TrialPage(PageOf[Trial]):
    total: Annotated[int, Field(description="how many trials match, on all pages together")]


class TrialDetail(Trial):
    segments: Annotated[list[Segment], Field(description="in the order in which they ran")]


class Change(Model):
    before: Annotated[Any, Field(description="the value in the previous segment")]
    after: Annotated[Any, Field(description="the value in this segment")]


class LineageSegment(Model):
    """One segment that led to a trial's weights. It may be a segment of another trial."""

    id: Annotated[str, Field(description="seg_...")]
    trial_id: str
    trial_number: int
    ordinal: int
    cause: Cause
    start_iteration: int
    end_iteration: Annotated[int, Field(description="where the next one continued from it, or where it is now")]
    source_checkpoint_id: str | None
    source_trial_number: int | None
    params: Json
    changes: Annotated[dict[str, Change], Field(description="parameters that changed from the previous segment")]


class ScheduleEntry(Model):
    iteration: Annotated[int, Field(description="after which it applies")]
    trial_number: int
    params: Json


class Lineage(Model):
    trial_id: str
    trial_number: int
    items: list[LineageSegment]
    schedule: Annotated[list[ScheduleEntry], Field(description="train with these to repeat what was found")]

    @classmethod
    def of(cls, record: TrialRecord, links: list[Link]) -> Lineage:
        return cls(
            trial_id=record.public_id,
            trial_number=record.number,
            items=[_link(record.experiment, link) for link in links],
            schedule=[
                ScheduleEntry(iteration=entry["iteration"], trial_number=entry["trial"], params=entry["params"])
                for entry in (schedule(links) if links else [])
            ],
        )


class CurveSegment(Model):
    ordinal: int
    cause: Cause
    x: Annotated[list[float], Field(description="iterations, steps or seconds, as asked for")]
    y: Annotated[list[Number], Field(description="the values; null where one is not finite")]


class MetricCurve(Model):
    metric: str
    segments: list[CurveSegment]


class TrialCurves(Model):
    """The curves of one trial, one for each metric that it has reported."""

    x: Literal["step", "time"]
    items: Annotated[list[MetricCurve], Field(description="in the order in which they were first reported")]

    @classmethod
    def of(cls, x: Literal["step", "time"], found: list[tuple[str, list[CurveSegmentRecord]]]) -> TrialCurves:
        return cls(x=x, items=[MetricCurve(metric=name, segments=_pieces(segments)) for name, segments in found])


class Series(Model):
    trial_id: str
    number: int
    state: TrialState
    best_value: Number
    segments: list[CurveSegment]


class BestSoFar(Model):
    x: Annotated[list[float], Field(description="seconds since the experiment's start")]
    y: Annotated[list[float], Field(description="the best value by then")]


class BestSoFarOf(BestSoFar):
    metric: str
    mode: Literal["min", "max"]


class Curves(Model):
    metric: str
    mode: Literal["min", "max"]
    x: Literal["step", "user_step", "time"]
    width: Annotated[
        int,
        Field(description="of each group of this many reports the lowest and the highest are there; 1: all reports"),
    ]
    left_out: Annotated[int, Field(description="trials of the experiment that are not among these")]
    series: Annotated[list[Series], Field(description="one curve for each trial")]
    best_so_far: Annotated[BestSoFar, Field(description="the best value by time")]

    @classmethod
    def of(
        cls,
        experiment: ExperimentRecord,
        metric: str,
        x: Literal["step", "user_step", "time"],
        found: CurvesRecord,
        left_out: int,
        best: tuple[list[float], list[float]],
    ) -> Curves:
        return cls(
            metric=metric,
            mode=mode_of(experiment, metric),
            x=x,
            width=found.width,
            left_out=left_out,
            series=[_series(experiment, curve) for curve in found.curves],
            best_so_far=BestSoFar(x=best[0], y=best[1]),
        )


class Decision(Model):
    seq: Annotated[int, Field(description="its place in the log")]
    time: Annotated[str, Field(description="when it was made")]
    kind: Annotated[DecisionKind, Field(description="what was decided")]
    trial_number: Annotated[int | None, Field(description="the number of that trial")]
    trial_id: Annotated[str | None, Field(description="the trial that it is about; null: the experiment")]
    reason: str
    state: Annotated[
        Literal["pending", "done", "superseded"], Field(description="whether the driver has carried it out")
    ]
    payload: Annotated[Json, Field(description="its details, by kind")]

    @classmethod
    def of(cls, experiment: str, record: DecisionRecord) -> Decision:
        return cls(
            seq=record.seq,
            time=rfc3339(record.time),
            kind=record.kind,  # type: ignore[arg-type]
            trial_number=record.trial,
            trial_id=None if record.trial is None else trial_id(experiment, record.trial),
            reason=record.reason,
            state=record.state,  # type: ignore[arg-type]
            payload=dict(record.payload),
        )


class DecisionPage(PageOf[Decision]):
    pass


class Point(Model):
    """One report: a point on the curve of each of its metrics."""

    seq: Annotated[int, Field(description="its place in the log")]
    trial_number: int
    segment: int
    cause: Annotated[Cause, Field(description="why that segment was started")]
    iteration: int
    step: Annotated[int | None, Field(description="the training code's own count, if it gives one")]
    time: Annotated[str, Field(description="when it was reported")]
    seconds: Annotated[float, Field(description="since the experiment's start")]
    metrics: Annotated[dict[str, Number], Field(description="the values by name; null where one is not finite")]


class Improvement(Model):
    """A new best value of an objective."""

    seq: Annotated[int, Field(description="the place of its report in the log")]
    metric: str
    seconds: Annotated[float, Field(description="since the experiment's start")]
    value: Annotated[float, Field(description="the new best value")]


class Changes(Model):
    """What changed behind one entry of an experiment's log: rows as they are now, and the points of new reports.

    A row replaces the one with the same id (decisions: the same `seq`; segments: the same trial and ordinal).
    """

    since: Annotated[int, Field(description="the event_seq behind which this is what changed")]
    seq: Annotated[int, Field(description="the event_seq up to which the log is covered; also the id of the message")]
    reset: Annotated[bool, Field(description="too much has changed: read everything again; the lists are empty")]
    experiment: Annotated[Experiment | None, Field(description="null while only its last_event_seq changes")]
    trials: Annotated[list[Trial], Field(description="new and changed trials")]
    segments: Annotated[list[SegmentItem], Field(description="new and changed segments")]
    decisions: Annotated[list[Decision], Field(description="new ones, and earlier ones with a new state")]
    points: Annotated[list[Point], Field(description="new reports, in the order of the log")]
    best: Annotated[list[Improvement], Field(description="new best values, in the order of the log")]

    @classmethod
    def of(cls, found: ChangesRecord, experiment: Experiment | None) -> Changes:
        public = found.experiment.public_id
        return cls(
            since=found.since,
            seq=found.bookmark.seq,
            reset=False,
            experiment=experiment,
            trials=[Trial.of(record) for record in found.trials],
            segments=[SegmentItem.of(item) for item in found.segments],
            decisions=[Decision.of(public, record) for record in found.decisions],
            points=[_point(point) for point in found.points],
            best=[Improvement.model_validate(one, from_attributes=True) for one in found.best],
        )

    @classmethod
    def bare(cls, seq: int, experiment: Experiment | None = None, *, reset: bool = False) -> Changes:
        """Nothing but the experiment's row, or the word that everything has to be read again."""
        return cls(
            since=seq,
            seq=seq,
            reset=reset,
            experiment=experiment,
            trials=[],
            segments=[],
            decisions=[],
            points=[],
            best=[],
        )


class LogItem(Model):
    """What one rank printed in one segment, or a part of it."""

    segment: Annotated[int, Field(description="ordinal of the segment within the trial")]
    rank: Annotated[int, Field(description="the rank that printed it")]
    stream: Annotated[str, Field(description="always output: both streams, in the order in which they were written")]
    text: Annotated[str, Field(description="what it printed; a line of its own says where bytes are not kept")]
    start: Annotated[int, Field(description="offset of the text in the rank's log, in bytes")]
    end: Annotated[int, Field(description="the offset that follows the text; ask for what follows with `offset`")]
    left_out: Annotated[int, Field(description="how many bytes in between are not kept; a line in the text says where")]
    complete: Annotated[bool, Field(description="the text goes up to the end, and the rank prints no more")]


class Logs(Model):
    items: list[LogItem]

    @classmethod
    def of(cls, logs: list[RankLog]) -> Logs:
        names = ("segment", "rank", "text", "start", "end", "left_out", "complete")
        return cls(items=[LogItem(stream="output", **{name: getattr(log, name) for name in names}) for log in logs])


class UsageSeries(shown(UsageRecord)):  # type: ignore[misc]
    """What one rank used during one segment: lists of equal length, oldest sample first."""


class Usage(Model):
    items: list[UsageSeries]

    @classmethod
    def of(cls, found: list[UsageRecord]) -> Usage:
        return cls(items=[UsageSeries.model_validate(series, from_attributes=True) for series in found])


class LiveRank(Model):
    """What a rank does and uses now. null if it does not answer, or uses no GPU."""

    rank: int
    stack: Annotated[str, Field(description="the Python stack of its training thread")]
    cpu_s: Annotated[
        float | None, Field(description="CPU time since the segment's start, child processes included")
    ] = None
    rss_bytes: Annotated[int | None, Field(description="resident memory of the process")] = None
    threads: Annotated[int | None, Field(description="threads of the process")] = None
    gpu_bytes: Annotated[int | None, Field(description="allocated by torch")] = None
    gpu_reserved_bytes: Annotated[int | None, Field(description="reserved by torch")] = None
    gpu_percent: Annotated[float | None, Field(description="how busy its GPUs are, with all their processes")] = None


class Live(Model):
    segment: int
    ranks: Annotated[list[LiveRank], Field(description="one item for each rank")]

    @classmethod
    def of(cls, segment: int, found: Mapping[str, Mapping[str, Any]]) -> Live:
        ranks = [LiveRank(rank=int(rank), **_known(figures)) for rank, figures in found.items()]
        return cls(segment=segment, ranks=sorted(ranks, key=lambda rank: rank.rank))


def _known(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name in LiveRank.model_fields}


class Health(Model):
    status: Annotated[
        Literal["ok", "ready", "unready"],
        Field(description="ok: it answers; ready or unready: whether it can run experiments"),
    ]
    problems: Annotated[list[str], Field(description="why it is not ready")] = []


def stream_data(experiment: str, item: StreamItem) -> dict[str, Any]:
    """Return the data of one server-sent event: a decision as `Decision`, others with their own fields."""
    data = {} if item.event == "model_fitted" else dict(item.data)  # a model means nothing to people, and may be large
    head: dict[str, Any] = {"seq": item.seq, "time": rfc3339(item.time), "kind": item.event}
    if item.event == "decision":
        head["kind"] = data.pop("kind")
        head |= {"trial_number": None, "trial_id": None}
    if item.trial is not None:
        head |= {"trial_number": item.trial, "trial_id": trial_id(experiment, item.trial)}
    return {**head, **data}


def mode_of(experiment: ExperimentRecord, metric: str) -> Literal["min", "max"]:
    """Return the mode of a metric. A metric that is not an objective has the mode of the first objective."""
    objectives = {objective.metric: objective.mode for objective in experiment.spec.objectives}
    return objectives.get(metric, experiment.spec.objective.mode)


def _best(record: ExperimentRecord) -> Best | None:
    best: Mapping[str, Any] | None = record.best
    if not best:
        return None
    finished = best.get("finished")
    return Best(**_placed(record, best), finished=None if finished is None else Finished(**_placed(record, finished)))


def _placed(record: ExperimentRecord, found: Mapping[str, Any]) -> dict[str, Any]:
    number = int(found["trial_number"])
    return {
        "trial_id": trial_id(record.public_id, number),
        "trial_number": number,
        "value": found.get("value"),
        "iteration": found.get("iteration"),
        "params": dict(found.get("params") or {}),
        "checkpoint_id": found.get("checkpoint_id"),
    }


@functools.lru_cache(maxsize=256)
def labels(space: str) -> dict[str, list[Any]]:
    """Return the labels of choices whose values are indices, by path. `space` is JSON text."""
    return Space.from_json(json.loads(space), opaque=True).labels()


def _point(point: ReportPoint) -> Point:
    return Point(
        seq=point.seq,
        trial_number=point.trial,
        segment=point.segment,
        cause=point.cause,
        iteration=point.iteration,
        step=point.step,
        time=rfc3339(point.time),
        seconds=point.seconds,
        metrics=dict(point.metrics),
    )


def _link(experiment: str, link: Link) -> LineageSegment:
    segment = link.segment
    return LineageSegment(
        id=segment.public_id,
        trial_id=trial_id(experiment, link.trial),
        trial_number=link.trial,
        ordinal=segment.ordinal,
        cause=segment.cause,
        start_iteration=segment.start_iteration,
        end_iteration=link.end_iteration,
        source_checkpoint_id=segment.source_checkpoint,
        source_trial_number=segment.source_trial,
        params=dict(segment.params),
        changes={name: Change(before=old, after=new) for name, (old, new) in link.changes.items()},
    )


def _series(experiment: ExperimentRecord, curve: Curve) -> Series:
    return Series(
        trial_id=trial_id(experiment.public_id, curve.trial),
        number=curve.trial,
        state=curve.state,  # type: ignore[arg-type]
        best_value=curve.best_value,
        segments=_pieces(curve.segments),
    )


def _pieces(segments: Sequence[CurveSegmentRecord]) -> list[CurveSegment]:
    return [CurveSegment(ordinal=s.ordinal, cause=s.cause, x=list(s.x), y=list(s.y)) for s in segments]  # type: ignore[arg-type]
