"""What the store hands out: rows as frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tuner.domain.experiment import Spec
from tuner.domain.states import ExperimentState, TrialState

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord:
    """A trainable that travels by value, and what it needs to be unpickled elsewhere."""

    hash: str
    blob: bytes | None = None  # cloudpickle; None where the spec's entrypoint is imported
    space_blob: bytes | None = None  # cloudpickle of choices that are no JSON values
    parts_blob: bytes | None = None  # cloudpickle of a scheduler, searcher or stopper that JSON cannot say
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    sys_path: Sequence[str] = ()
    working_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    id: int
    public_id: str
    spec: Spec
    state: ExperimentState
    source: str
    code_hash: str | None
    driver_epoch: int
    driver_owner: str | None
    lease_until: float | None
    last_event_seq: int
    best: Mapping[str, Any] | None
    no_best: str | None  # why `best` is None although trials have reported
    counts: Mapping[str, int]
    reason: str
    error: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def name(self) -> str:
        return self.spec.name

    def abandoned(self, now: float) -> bool:
        """Return True if a script created this experiment and is gone, so that it goes on only when somebody says so."""
        if self.source != "python" or self.state not in _DRIVEN or (self.lease_until or 0.0) > now:
            return False
        return self.driver_epoch > 0 or now - self.created_at >= NEW_S


_DRIVEN = (ExperimentState.PENDING, ExperimentState.RUNNING, ExperimentState.PAUSING)
NEW_S = 60.0
"""How long an experiment that a script has just created is left to that script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an experiment has got: what somebody who follows it asks several times a second."""

    last_event_seq: int
    state: ExperimentState
    reason: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    id: int
    public_id: str
    ordinal: int
    cause: str
    start_iteration: int
    params: Mapping[str, Any]
    source_checkpoint: str | None
    source_trial: int | None  # the number of the trial, and the ordinal of its segment, that saved the checkpoint
    source_ordinal: int | None
    placement: Mapping[str, Any]
    warm: bool | None
    startup_s: float | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class TrialSegment:
    """A segment with the number of its trial."""

    trial: int
    segment: SegmentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    id: int
    public_id: str
    experiment_id: int
    experiment: str  # its public id
    number: int
    state: TrialState
    params: Mapping[str, Any]
    searcher: Mapping[str, Any]
    tags: Mapping[str, Any]
    iteration: int
    last: Mapping[str, float]
    last_value: float | None
    best_value: float | None
    best_iteration: int | None
    best_params: Mapping[str, Any]  # the configuration that reached best_value; the present one before there is a value
    feasible: bool | None  # whether its result keeps within the constraints; None: there are none, or nothing to judge
    reports: int
    running_s: float
    failures: int
    system_failures: int
    failure: Mapping[str, Any] | None
    reason: str
    waiting: str | None
    checkpoint: Mapping[str, Any] | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    segments: tuple[SegmentRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    seq: int
    time: float
    kind: str
    trial: int | None
    reason: str
    state: str  # pending | done | superseded
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    public_id: str
    trial: int
    segment: int
    step: int
    uri: str
    bytes: int
    state: str  # uploading | ready | deleted
    node: str | None  # Ray's id of the node that wrote it to a path; None where it lies at a URI


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    id: int
    experiment_id: int
    command: str
    trial: int | None
    reason: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """One log entry for the event stream. `event` is its kind; a decision's is "decision"."""

    seq: int
    event: str
    time: float
    trial: int | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """A place in an experiment's log, with what has to be known to tell what changed behind it."""

    seq: int
    open_decisions: frozenset[int] | None = None  # event_seq of those that were pending there; None: not known
    last_segment: int = 0  # the internal id of the newest segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPoint:
    """One report: a point on the curve of each of its metrics."""

    seq: int
    trial: int
    segment: int
    cause: str  # of the segment
    iteration: int
    step: int | None  # the training code's own count
    time: float
    seconds: float  # since the experiment's start
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPoint:
    """An improvement of an objective's best value."""

    seq: int
    metric: str
    seconds: float  # since the experiment's start
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What changed behind one entry of an experiment's log and up to another one. Rows are as they were when they were read."""

    since: int
    bookmark: Bookmark  # of the last entry: the next changes come behind it
    experiment: ExperimentRecord
    metrics: Sequence[str]
    trials: Sequence[TrialRecord]
    segments: Sequence[TrialSegment]
    decisions: Sequence[DecisionRecord]
    points: Sequence[ReportPoint]
    best: Sequence[BestPoint]
    restarted: bool  # a new driver began: rows that no log entry names may have changed, too


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSegment:
    ordinal: int
    cause: str
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One trial's curve; it breaks between segments."""

    trial: int
    state: str
    best_value: float | None
    segments: Sequence[CurveSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of some trials. Of every `width` reports the lowest and the highest are there; 1 is every report."""

    width: int
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of what one rank wrote. `chunk_no`, from 0 per (segment, rank, stream), makes a repeat harmless."""

    trial: int
    segment: int
    rank: int
    stream: str
    chunk_no: int
    time: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """What one rank used at one moment. `sample_no`, from 1 per (segment, rank), makes a repeat harmless."""

    trial: int
    segment: int
    rank: int
    sample_no: int
    time: float
    cpu_s: float  # CPU time used since the segment's start, child processes included
    rss_bytes: int
    gpu_bytes: int | None = None  # allocated; None where no GPU is in use, as the next two
    gpu_reserved_bytes: int | None = None
    gpu_percent: float | None = None  # of the time that its GPUs were busy


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSeries:
    """What one rank used during one segment; lists of equal length, oldest sample first."""

    segment: int
    rank: int
    x: Sequence[float]  # seconds since the experiment's start
    cpu_percent: Sequence[
        float | None
    ]  # since the sample before it, the segment's start for the first; 100 is one core
    rss_bytes: Sequence[int]
    gpu_bytes: Sequence[int | None]
    gpu_reserved_bytes: Sequence[int | None]
    gpu_percent: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    next_token: str | None
