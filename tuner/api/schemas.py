"""What the API answers, as types. The OpenAPI document, and with it the page's TypeScript, is made from these.

Times are RFC 3339 in UTC; NaN and infinities are null.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tuner.domain.keys import trial_id
from tuner.domain.states import TrialState
from tuner.experiments.lineage import Link, schedule
from tuner.experiments.preview import Importance, Preview
from tuner.experiments.usecases import how_to_go_on
from tuner.space import Space
from tuner.store import (
    Curve,
    DecisionRecord,
    ExperimentRecord,
    LogChunk,
    SegmentRecord,
    StreamItem,
    TrialRecord,
    TrialSegment,
)
from tuner.store import Curves as CurvesRecord
from tuner.store import CurveSegment as CurveSegmentRecord
from tuner.store import UsageSeries as UsageRecord

T = TypeVar("T")
Json = dict[str, Any]
Number = float | None
ExperimentStateName = Literal[
    "pending", "running", "pausing", "paused", "cancelling", "cancelled", "completed", "failed"
]
TrialStateName = Literal["pending", "running", "paused", "completed", "stopped", "failed", "cancelled"]
DecisionKind = Literal[
    "start", "resume", "pause", "stop", "complete", "exploit", "retry", "fail", "cancel", "finish", "note"
]
Cause = Literal["start", "retry", "resume", "exploit"]


class Model(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="null", json_schema_serialization_defaults_required=True)


class PageOf(Model, Generic[T]):
    items: list[T]
    next_page_token: Annotated[str | None, Field(description="of the next page; null on the last one")] = None


class ErrorItem(Model):
    pointer: Annotated[str, Field(description="JSON pointer to the field; empty where the whole is meant")]
    message: str


class Problem(Model):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[ErrorItem] = []


class Counts(Model):
    pending: int = 0
    running: int = 0
    paused: int = 0
    completed: int = 0
    stopped: int = 0
    failed: int = 0
    cancelled: int = 0


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


class Scaling(Model):
    num_workers: int
    use_gpu: bool
    resources_per_worker: dict[str, float]
    placement_strategy: str
    backend: str
    reuse_workers: bool
    working_dir: str


class Limits(Model):
    max_concurrent_trials: int | None
    time_budget_s: float | None
    budget: Annotated[float | None, Field(description="full trainings' worth (max_t each), all trials together")]
    max_failures: int
    max_system_failures: int
    placement_timeout_s: float
    hang_timeout_s: float | None
    stop_grace_s: float


class Objective(Model):
    metric: str
    mode: Literal["min", "max"]


class Resolved(Model):
    """What the scheduler and the search that were asked for mean in this experiment."""

    scheduler: Annotated[Json, Field(description='what "auto" stands for, with all options and what it inherits')]
    search: Annotated[Json | None, Field(description="null where the scheduler proposes configurations itself")]
    constraints: Annotated[Json, Field(description='what results must satisfy: {"size": {"max": 0.25}}')] = {}
    budget: Annotated[str | None, Field(description="what the search may spend, in words, and how to raise it")] = None


class Experiment(Model):
    id: str
    name: str
    state: ExperimentStateName
    metric: Annotated[str, Field(description="the first objective, the one that schedulers look at")]
    mode: Literal["min", "max"]
    objectives: list[Objective]
    created_at: str
    started_at: str | None
    ended_at: str | None
    num_samples: int | None
    max_t: int | None
    time_attr: str
    seed: int
    space: Json
    search: Json
    scheduler: Json
    resolved: Annotated[Resolved | None, Field(description="null where an older version created it")]
    method: Annotated[str, Field(description='in a few words: "tpe + asha", "freeze_thaw (auto)"')]
    stop: Json
    scaling: Scaling
    limits: Limits
    entrypoint: Annotated[str | None, Field(description="null where the function travelled by value")]
    source: Annotated[
        str,
        Field(description="python or api: where it was created; adopted: in Python, and a service drives it by now"),
    ]
    abandoned: Annotated[
        bool, Field(description="its script is gone and no driver has it: it goes on when it is resumed")
    ]
    how_to_go_on: Annotated[str | None, Field(description="where it is abandoned, what to do, in words")]
    metrics: Annotated[list[str], Field(description="names reported so far")]
    counts: Counts
    trials: int
    best: Best | None
    no_best: Annotated[str | None, Field(description="why `best` is null although trials have reported")]
    labels: Annotated[
        dict[str, list[Any]],
        Field(description="what the values of a parameter stand for, if they are indices of choices"),
    ]
    reason: str
    error: str | None
    last_event_seq: int

    @classmethod
    def of(cls, record: ExperimentRecord, metrics: list[str]) -> Experiment:
        spec = record.spec
        counts = Counts(**{str(state): record.counts.get(str(state), 0) for state in TrialState})
        abandoned = record.abandoned(time.time())
        return cls(
            id=record.public_id,
            name=spec.name,
            state=record.state.value,
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
            scaling=Scaling.model_validate(spec.scaling, from_attributes=True),
            limits=Limits.model_validate(spec.limits, from_attributes=True),
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
    search: Json
    notes: Annotated[list[str], Field(description="why these, and other defaults that were chosen, in words")]
    num_samples: Annotated[int | None, Field(description="trials to be started; null: until the time budget is spent")]
    max_t: int | None
    time_attr: str
    scaling: Scaling
    limits: Limits
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
            scaling=Scaling.model_validate(spec.scaling, from_attributes=True),
            limits=Limits.model_validate(spec.limits, from_attributes=True),
            configurations=[Configuration(params=dict(p), config=dict(c)) for p, c in found.configurations],
        )


class Share(Model):
    parameter: str
    share: float


class Importances(Model):
    metric: str
    items: Annotated[list[Share], Field(description="the most important first, together 1; empty with too few results")]
    trials: Annotated[int, Field(description="ended trials with a result")]
    needed: Annotated[int, Field(description="how many of them there have to be")]
    left_out: Annotated[
        int, Field(description="ended trials that were not looked at: at most 5,000 are, evenly spaced")
    ]

    @classmethod
    def of(cls, found: Importance) -> Importances:
        items = [Share(parameter=name, share=share) for name, share in found.shares.items()]
        return cls(metric=found.metric, items=items, trials=found.trials, needed=found.needed, left_out=found.left_out)


class ExperimentPage(PageOf[Experiment]):
    pass


class Failure(Model):
    kind: Literal["user", "system", "placement", "spec"]
    cause: str
    message: str
    rank: int | None
    node: str | None
    pid: int | None
    traceback: str
    log_tail: str
    stacks: dict[str, str]


class Checkpoint(Model):
    id: str
    uri: str
    step: int
    bytes: int
    node: str | None = Field(
        description="Ray's id of the node that wrote it, where storage is a path: on its disk it lies unless nodes share the path"
    )


class Segment(Model):
    """One uninterrupted execution of a trial, with one configuration and one starting checkpoint."""

    id: str
    ordinal: int
    cause: Cause
    start_iteration: int
    params: Json
    source_checkpoint_id: str | None
    source_trial_number: int | None
    placement: Json
    warm: bool | None
    startup_s: float | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    outcome: str | None

    @classmethod
    def of(cls, record: SegmentRecord) -> Segment:
        return cls(
            id=record.public_id,
            ordinal=record.ordinal,
            cause=record.cause,  # type: ignore[arg-type]
            start_iteration=record.start_iteration,
            params=dict(record.params),
            source_checkpoint_id=record.source_checkpoint,
            source_trial_number=record.source_trial,
            placement=dict(record.placement),
            warm=record.warm,
            startup_s=record.startup_s,
            created_at=rfc3339(record.created_at),
            started_at=rfc3339_or_none(record.started_at),
            ended_at=rfc3339_or_none(record.ended_at),
            outcome=record.outcome,
        )


class SegmentItem(Model):
    """A segment in the list of all segments of an experiment."""

    trial_number: int
    ordinal: int
    cause: Cause
    start_iteration: int
    source_trial_number: Annotated[int | None, Field(description="whose checkpoint it went on from, if from any")]
    source_ordinal: Annotated[int | None, Field(description="of the segment that saved that checkpoint")]
    params: Json
    warm: bool | None
    startup_s: float | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    outcome: str | None

    @classmethod
    def of(cls, item: TrialSegment) -> SegmentItem:
        record = item.segment
        return cls(
            trial_number=item.trial,
            ordinal=record.ordinal,
            cause=record.cause,  # type: ignore[arg-type]
            start_iteration=record.start_iteration,
            source_trial_number=record.source_trial,
            source_ordinal=record.source_ordinal,
            params=dict(record.params),
            warm=record.warm,
            startup_s=record.startup_s,
            created_at=rfc3339(record.created_at),
            started_at=rfc3339_or_none(record.started_at),
            ended_at=rfc3339_or_none(record.ended_at),
            outcome=record.outcome,
        )


class SegmentPage(PageOf[SegmentItem]):
    pass


class Trial(Model):
    id: str
    experiment_id: str
    number: int
    state: TrialStateName
    params: Annotated[Json, Field(description='flat: "optimizer/lr" -> value')]
    iteration: int
    last: dict[str, Number]
    last_value: Number
    best_value: Number
    best_iteration: int | None
    best_params: Annotated[Json, Field(description="that led to best_value; under PBT they may differ from params")]
    feasible: Annotated[
        bool | None, Field(description="whether its result keeps within the constraints; null: none to judge")
    ]
    running_s: float
    failures: int
    reason: str
    waiting: str | None
    error: Failure | None
    checkpoint: Checkpoint | None
    created_at: str
    started_at: str | None
    ended_at: str | None

    @classmethod
    def of(cls, record: TrialRecord) -> Trial:
        return cls(**_trial_fields(record))


class TrialPage(PageOf[Trial]):
    total: Annotated[int, Field(description="how many trials fit, on all pages together")]


class TrialDetail(Trial):
    segments: list[Segment]

    @classmethod
    def of(cls, record: TrialRecord) -> TrialDetail:
        return cls(**_trial_fields(record), segments=[Segment.of(segment) for segment in record.segments])


class Change(Model):
    before: Any
    after: Any


class LineageSegment(Model):
    """One segment behind a trial's weights, which may be another trial's."""

    id: str
    trial_id: str
    trial_number: int
    ordinal: int
    cause: Cause
    start_iteration: int
    end_iteration: Annotated[int, Field(description="where the next one took its weights over, or where it is now")]
    source_checkpoint_id: str | None
    source_trial_number: int | None
    params: Json
    changes: Annotated[dict[str, Change], Field(description="of parameters, against the segment before")]


class ScheduleEntry(Model):
    iteration: Annotated[int, Field(description="after which it held")]
    trial_number: int
    params: Json


class Lineage(Model):
    trial_id: str
    trial_number: int
    items: list[LineageSegment]
    schedule: Annotated[list[ScheduleEntry], Field(description="train anew with these to repeat what was found")]

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
    x: list[float]
    y: list[Number]


class MetricCurve(Model):
    metric: str
    segments: list[CurveSegment]


class TrialCurves(Model):
    """The curves of one trial, one for every metric that it has reported."""

    x: Literal["step", "time"]
    items: Annotated[list[MetricCurve], Field(description="in the order in which they were first reported")]

    @classmethod
    def of(cls, x: Literal["step", "time"], found: list[tuple[str, list[CurveSegmentRecord]]]) -> TrialCurves:
        return cls(x=x, items=[MetricCurve(metric=name, segments=_pieces(segments)) for name, segments in found])


class Series(Model):
    trial_id: str
    number: int
    state: TrialStateName
    best_value: Number
    segments: list[CurveSegment]


class BestSoFar(Model):
    x: Annotated[list[float], Field(description="seconds since the experiment's start")]
    y: list[float]


class BestSoFarOf(BestSoFar):
    metric: str
    mode: Literal["min", "max"]


class Curves(Model):
    metric: str
    mode: Literal["min", "max"]
    x: Literal["step", "user_step", "time"]
    width: Annotated[
        int, Field(description="of every so many reports the lowest and the highest are there; 1: all reports are")
    ]
    left_out: Annotated[int, Field(description="trials of the experiment that are not among these")]
    series: list[Series]
    best_so_far: BestSoFar

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
    seq: int
    time: str
    kind: DecisionKind
    trial_number: int | None
    trial_id: str | None
    reason: str
    state: Literal["pending", "done", "superseded"]
    payload: Json

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


class LogItem(Model):
    segment: int
    rank: int
    stream: str
    text: str


class Logs(Model):
    items: list[LogItem]

    @classmethod
    def of(cls, chunks: list[LogChunk]) -> Logs:
        return cls(items=[LogItem(segment=c.segment, rank=c.rank, stream=c.stream, text=c.text) for c in chunks])


class UsageSeries(Model):
    """What one rank used during one segment: lists of equal length, oldest sample first."""

    segment: int
    rank: int
    x: Annotated[list[float], Field(description="seconds since the experiment's start")]
    cpu_percent: Annotated[list[float | None], Field(description="since the sample before; 100 is one core")]
    rss_bytes: list[int]
    gpu_bytes: Annotated[list[int | None], Field(description="allocated by torch; null where no GPU is in use")]
    gpu_reserved_bytes: list[int | None]
    gpu_percent: Annotated[list[float | None], Field(description="how busy its GPUs were, by whomever")]


class Usage(Model):
    items: list[UsageSeries]

    @classmethod
    def of(cls, found: list[UsageRecord]) -> Usage:
        return cls(items=[UsageSeries.model_validate(series, from_attributes=True) for series in found])


class LiveRank(Model):
    """What a rank does and uses now; null where it does not answer, or uses no GPU."""

    rank: int
    stack: str
    cpu_s: Annotated[
        float | None, Field(description="CPU time since the segment's start, child processes included")
    ] = None
    rss_bytes: int | None = None
    threads: int | None = None
    gpu_bytes: Annotated[int | None, Field(description="allocated by torch")] = None
    gpu_reserved_bytes: int | None = None
    gpu_percent: Annotated[float | None, Field(description="how busy its GPUs are, by whomever")] = None


class Live(Model):
    segment: int
    ranks: list[LiveRank]

    @classmethod
    def of(cls, segment: int, found: Mapping[str, Mapping[str, Any]]) -> Live:
        ranks = [LiveRank(rank=int(rank), **_known(figures)) for rank, figures in found.items()]
        return cls(segment=segment, ranks=sorted(ranks, key=lambda rank: rank.rank))


def _known(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name in LiveRank.model_fields}


class Health(Model):
    status: Literal["ok", "ready", "unready"]
    problems: list[str] = []


def stream_data(experiment: str, item: StreamItem) -> dict[str, Any]:
    """The data of one server-sent event; a decision as `Decision`, all others with their own fields."""
    data = {} if item.event == "model_fitted" else dict(item.data)  # a model is nothing to look at, and may be large
    head: dict[str, Any] = {"seq": item.seq, "time": rfc3339(item.time), "kind": item.event}
    if item.event == "decision":
        head["kind"] = data.pop("kind")
        head |= {"trial_number": None, "trial_id": None}
    if item.trial is not None:
        head |= {"trial_number": item.trial, "trial_id": trial_id(experiment, item.trial)}
    return {**head, **data}


def mode_of(experiment: ExperimentRecord, metric: str) -> Literal["min", "max"]:
    """The mode of this metric; of a metric that is no objective, the first objective's."""
    objectives = {objective.metric: objective.mode for objective in experiment.spec.objectives}
    return objectives.get(metric, experiment.spec.objective.mode)


def rfc3339(time: float) -> str:
    """``2026-01-31T12:00:00.123456Z``. Virtual times and nonsense come out as the epoch's neighbourhood, never as an error."""
    if not math.isfinite(time) or not 0 <= time < 253_402_300_800:
        time = 0.0
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def rfc3339_or_none(time: float | None) -> str | None:
    return None if time is None else rfc3339(time)


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
    """The labels of choices whose values are indices, by path, for a space given as JSON text."""
    return Space.from_json(json.loads(space), opaque=True).labels()


def _checkpoint(found: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(**{name: found[name] for name in ("id", "uri", "step", "bytes")}, node=found.get("node"))


def _trial_fields(record: TrialRecord) -> dict[str, Any]:
    names = (
        "number",
        "iteration",
        "last_value",
        "best_value",
        "best_iteration",
        "feasible",
        "running_s",
        "failures",
        "reason",
        "waiting",
    )
    found = record.checkpoint
    return {
        **{name: getattr(record, name) for name in names},
        "id": record.public_id,
        "experiment_id": record.experiment,
        "state": record.state.value,
        "params": dict(record.params),
        "best_params": dict(record.best_params),
        "last": dict(record.last),
        "error": None if record.failure is None else Failure.model_validate(dict(record.failure)),
        "checkpoint": None if found is None else _checkpoint(found),
        "created_at": rfc3339(record.created_at),
        "started_at": rfc3339_or_none(record.started_at),
        "ended_at": rfc3339_or_none(record.ended_at),
    }


def _link(experiment: str, link: Link) -> LineageSegment:
    segment = link.segment
    return LineageSegment(
        id=segment.public_id,
        trial_id=trial_id(experiment, link.trial),
        trial_number=link.trial,
        ordinal=segment.ordinal,
        cause=segment.cause,  # type: ignore[arg-type]
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
