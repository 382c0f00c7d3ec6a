"""The records that the store returns: rows as frozen values.

`TrialRecord` is also the declaration of the columns of a trial. The table, the rows that a driver writes, sorting, and the
responses of the API are made from its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from tuner.domain.experiment import Spec
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Cause
from tuner.errors import damaged_columns, unknown_options, unknown_state
from tuner.store.running import RunningClock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class About:
    """Annotates a field of a record that the API shows. A field whose name ends in ``_at`` is a Unix timestamp.

    text: the meaning of the field.
    name: the name of the field in the API, if it has another name there.
    """

    text: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord:
    """A trainable that is pickled by value, and the data that another process needs to unpickle it."""

    hash: str
    blob: bytes | None = None  # cloudpickle; None if the spec's entrypoint is imported
    space_blob: bytes | None = None  # cloudpickle of choices that JSON cannot express
    parts_blob: bytes | None = None  # cloudpickle of a scheduler, searcher or stopper that JSON cannot express
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    sys_path: Sequence[str] = ()
    working_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """An experiment. The API shows the fields that have an `About`, and some values from `spec`."""

    id: int
    public_id: Annotated[str, About("exp_...", name="id")]
    spec: Spec
    state: Annotated[ExperimentState, About("the state of the experiment")]
    source: Annotated[
        str,
        About(
            "python or api: where the experiment was created; study: driven by ask and tell; "
            "adopted: created in Python, now driven by a service; import: imported from another tool"
        ),
    ]
    project: Annotated[str, About("the project of the experiment")]
    code_hash: str | None
    driver_epoch: int
    driver_owner: str | None
    lease_until: float | None
    last_event_seq: Annotated[int, About("the number of the newest log entry that this answer takes into account")]
    best: Mapping[str, Any] | None
    no_best: Annotated[str | None, About("why `best` is null although trials have reported; otherwise null")]
    counts: Mapping[str, int]
    gpu_hours: Annotated[float, About("GPU hours that the experiment's trials have used, as of its newest event")]
    gpu_hours_saved: Annotated[
        float,
        About("GPU hours that the experiment's stopped trials would have needed to reach max_t, each at its own pace"),
    ]
    cpu_hours: Annotated[
        float, About("CPU hours that were reserved for the experiment's trials, as of its newest event")
    ]
    budget_spent: Annotated[
        float | None,
        About(
            "the share of the budget of full trainings that is spent, from 0 to 1; null if there is no such budget, and before "
            "the first report"
        ),
    ]
    pauses: Sequence[tuple[float, float | None]] | None
    paused_s: Annotated[
        float,
        About(
            "seconds since `started_at` during which the experiment was not running: it was paused, had ended before a user "
            "continued it, had no driver, or the driver's machine was suspended. A pause that is still in progress is not "
            "included"
        ),
    ]
    reason: Annotated[str, About("the reason, in words")]
    error: Annotated[
        str | None,
        About(
            "why the experiment failed, or why it has no best trial although trials have reported; null otherwise, even if "
            "individual trials failed: each of them has its own error"
        ),
    ]
    created_at: Annotated[float, About("when it was created")]
    started_at: Annotated[float | None, About("when the experiment started; null until then")]
    ended_at: Annotated[float | None, About("when the experiment reached its final state")]
    unknown: Sequence[str] = ()  # the options of the spec that this version does not know; `spec` lacks them
    unknown_state: str | None = None  # the stored state if this version does not know it; `state` stands in for it
    damaged: Sequence[str] = ()  # the columns that have no JSON, or not what belongs there
    first_spec: Spec  # the spec at creation; `spec` includes the later changes by users
    changes: Mapping[str, Any]  # the difference between the two specs, see `Spec.amended`
    revision: Annotated[int, About("the number of changes by PATCH; the experiment's ETag begins with this number")]
    archived_at: Annotated[float | None, About("when the experiment was archived; null if it is not archived")]
    thinned_at: Annotated[
        float | None,
        About(
            "when most points of the experiment's curves were deleted (TUNER_POINT_DAYS), so that it can no longer be "
            "continued or replayed; null if all points are kept"
        ),
    ]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def why_incomplete(self) -> str | None:
        """Say what `spec` lacks of the stored spec, in words. None if it lacks nothing."""
        if damaged := [name for name in self.damaged if name in ("spec", "changes")]:
            return damaged_columns(damaged)
        return unknown_options(self.unknown) if self.unknown else None

    @property
    def why_undrivable(self) -> str | None:
        """Say why no driver of this version may drive the experiment. None if one may."""
        return self.why_incomplete or (None if self.unknown_state is None else unknown_state(self.unknown_state))

    @property
    def unreadable(self) -> str | None:
        """Say what this version cannot read in the experiment's row. None if it can read everything."""
        return self.why_undrivable or (damaged_columns(self.damaged) if self.damaged else None)

    @property
    def clock(self) -> RunningClock:
        """The clock of the experiment. It is zero when the experiment starts or, until then, at its creation."""
        return RunningClock(self.created_at if self.started_at is None else self.started_at, self.pauses or ())

    @property
    def paused_since(self) -> float | None:
        """Return when the current pause began; None if the experiment is not paused, or has ended."""
        if not self.pauses or self.state.ended:
            return None
        start, end = self.pauses[-1]
        return start if end is None else None

    def as_created(self) -> ExperimentRecord:
        """Return the record as it was when the experiment was created."""
        if self.state is ExperimentState.PENDING and not (
            self.driver_epoch or self.last_event_seq or self.revision or self.archived_at
        ):
            return self  # nothing has happened since then
        return dataclasses.replace(
            self,
            state=ExperimentState.PENDING,
            driver_epoch=0,
            driver_owner=None,
            lease_until=None,
            last_event_seq=0,
            best=None,
            no_best=None,
            counts={},
            gpu_hours=0.0,
            gpu_hours_saved=0.0,
            cpu_hours=0.0,
            budget_spent=None,
            pauses=None,
            paused_s=0.0,
            reason="",
            error=None,
            started_at=None,
            ended_at=None,
            archived_at=None,
            thinned_at=None,
            spec=self.first_spec,
            changes={},
            revision=0,
        )

    @property
    def incomplete(self) -> bool:
        """True if the experiment is being imported from another tool, or its import was interrupted."""
        # In early versions, an import wrote under epoch 1 as the owner "import". Any other owner is a driver, so the import was
        # complete.
        writing = self.driver_epoch == 0 or self.driver_owner == IMPORTED
        return self.source == IMPORTED and self.ended_at is None and writing

    def abandoned(self, now: float) -> bool:
        """Return True if the script that created this experiment has ended. The experiment then continues only on request."""
        if self.source != "python" or self.state not in _DRIVEN or (self.lease_until or 0.0) > now:
            return False
        return self.driver_epoch > 0 or now - self.created_at >= NEW_S


IMPORTED = "import"
"""The source of experiments that are imported from other tools."""
_DRIVEN = (ExperimentState.PENDING, ExperimentState.RUNNING, ExperimentState.PAUSING)
NEW_S = 60.0
"""For this many seconds after its creation, a script's experiment is not abandoned, because the script may still claim it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an experiment. A caller that follows an experiment reads this several times a second.

    Changes by users are in no log entry while no driver has carried them out, so `revision` and `archived_at` tell of them.
    Housekeeping is in no log entry, either, so `thinned_at` tells of it.
    """

    last_event_seq: int
    state: ExperimentState
    reason: str
    error: str | None
    revision: int
    archived_at: float | None
    thinned_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    id: int
    public_id: Annotated[str, About("seg_...", name="id")]
    ordinal: Annotated[int, About("the number of the segment within its trial, counted from 1")]
    cause: Annotated[Cause, About("why it was started")]
    start_iteration: Annotated[
        int, About("training_iteration at which the segment started; 0 without a checkpoint to start from")
    ]
    params: Annotated[Mapping[str, Any], About("the configuration that the segment trains with, as a flat mapping")]
    source_checkpoint: Annotated[
        str | None, About("the checkpoint that the segment started from, if any", name="source_checkpoint_id")
    ]
    source_trial: Annotated[
        int | None, About("the trial that saved the segment's source checkpoint", name="source_trial_number")
    ]
    source_ordinal: Annotated[int | None, About("the ordinal of the segment that saved the source checkpoint")]
    placement: Annotated[Mapping[str, Any], About("the nodes and devices of the segment's ranks")]
    warm: Annotated[
        bool | None, About("whether the segment ran in worker processes of a finished trial; null until it has started")
    ]
    startup_s: Annotated[float | None, About("seconds from the segment's launch until all its ranks were training")]
    created_at: Annotated[float, About("when it was created")]
    started_at: Annotated[float | None, About("when all ranks of the segment were training")]
    ended_at: Annotated[float | None, About("when all ranks of the segment had ended")]
    outcome: Annotated[str | None, About("how the segment ended; null while it is running")]
    held_s: Annotated[
        float | None,
        About(
            "the part of startup_s after the resources became free, in seconds; the rest was spent waiting for them. "
            "null: not known"
        ),
    ] = None
    workers: Annotated[
        int | None,
        About(
            "the number of its ranks, which differs between the segments of an elastic trial. null: scaling.num_workers"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TrialSegment:
    """A segment with the number of its trial."""

    trial: int
    segment: SegmentRecord


class TrialOutcome(NamedTuple):
    """The value of a trial, and the configuration that reached it."""

    number: int
    repeat_of: int | None  # the number of the trial whose configuration it evaluated again
    state: TrialState
    params: Mapping[str, Any]  # flat
    revision: int | None  # the revision of the params' search space; None if earlier params led to the value
    value: float


@dataclass(frozen=True, slots=True)
class TrialSample:
    """A sample of an experiment's trials, by number: the best trials, and others spread over the rest of the ranking."""

    trials: tuple[TrialRecord, ...]
    ranks: tuple[int, ...]
    """The rank of each sampled trial among all trials by best value, from 1; after repeats, by expected value.

    Trials without a value come last.
    """
    fronts: tuple[int | None, ...]
    """With several objectives, the front of each sampled trial, from 1 for the Pareto front; None for a trial on none."""
    total: int


@dataclass(frozen=True, slots=True)
class Training:
    """The amount of training that the trials of an experiment have had together.

    Attributes:
        reports: their reports, including those that a restarted trial repeated.
        iterations: the sum of their current iterations, which fall back when a trial starts over.
        seconds: the seconds for which they trained.
    """

    reports: int
    iterations: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial. Each field but `experiment` and `segments` is a column of the table `trial`.

    A driver fills a column from the attribute of `tuner.domain.trial.Trial` with the same name; `tuner.store.writing.rows`
    lists the exceptions. The API shows the fields that have an `About`.
    """

    id: int
    public_id: Annotated[str, About("trl_...", name="id")]
    experiment_id: int
    experiment: Annotated[str, About("exp_...", name="experiment_id")]
    number: Annotated[int, About("the number of the trial within its experiment, counted from 0")]
    state: Annotated[TrialState, About("the state of the trial")]
    params: Annotated[
        Mapping[str, Any], About('the configuration of the trial, as a flat mapping: "optimizer/lr" -> value')
    ]
    searcher: Mapping[str, Any]
    tags: Mapping[str, Any]
    iteration: Annotated[int, About("training_iteration of the trial's newest report")]
    last: Annotated[Mapping[str, float], About("the newest value of each metric")]
    last_value: Annotated[float | None, About("the newest finite value of the first objective")]
    best_value: Annotated[
        float | None,
        About("the trial's value of the first objective: the best feasible one or, with scope 'last', the last one"),
    ]
    best_iteration: Annotated[int | None, About("training_iteration of the report that had best_value")]
    space_revision: Annotated[
        int,
        About("the revision of the search space to which params belong: 0 at first, plus 1 for each change by PATCH"),
    ]
    best_params: Annotated[
        Mapping[str, Any],
        About(
            "the configuration at the report of best_value; under PBT it may differ from params and from earlier ones"
        ),
    ]
    feasible: Annotated[
        bool | None, About("whether the result satisfies the constraints; null if there are no constraints")
    ]
    reports: Annotated[
        int,
        About(
            "how many reports the trial has made, over all its segments; more than iteration if training was repeated after a "
            "restart, and less if the trial continued from another trial's checkpoint"
        ),
    ]
    running_s: Annotated[
        float, About("seconds of training, summed over the trial's segments, each from its start to its last report")
    ]
    failures: Annotated[
        int, About("how many times the trial's code has failed so far; max_failures limits the retries")
    ]
    system_failures: int
    failure: Annotated[Mapping[str, Any] | None, About("the latest failure", name="error")]
    reason: Annotated[str, About("the reason for the latest decision about the trial, in words")]
    waiting: Annotated[
        str | None, About("why the trial has not started yet, in words; null if it is not waiting to start")
    ]
    checkpoint: Annotated[Mapping[str, Any] | None, About("the trial's newest usable checkpoint")]
    created_at: Annotated[float, About("when it was created")]
    started_at: Annotated[float | None, About("when the trial's first segment started")]
    ended_at: Annotated[float | None, About("when the trial reached its final state")]
    repeat_of: Annotated[
        int | None,
        About("the number of the trial whose configuration this trial evaluates again; null if it is not a repeat"),
    ] = None
    segments: tuple[SegmentRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision. The API shows the fields that have an `About`, and some other fields in another form."""

    seq: Annotated[int, About("the position of the decision in the log")]
    time: float
    kind: str
    trial: Annotated[int | None, About("the number of the trial that the decision is about", name="trial_number")]
    reason: Annotated[str, About("the reason, in words")]
    state: str  # pending | done | superseded
    payload: Annotated[Mapping[str, Any], About("its details, by kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    public_id: str
    trial: int
    segment: int
    step: int
    uri: str
    bytes: int
    state: str  # uploading | ready | deleted
    node: str | None  # Ray's id of the node that wrote it to a path; None if it is at a URI
    experiment: str  # exp_...
    pinned: bool = False  # a user has pinned it


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    id: int
    experiment_id: int
    command: str
    trial: int | None
    reason: str
    created_at: float
    payload: Mapping[str, Any] = field(default_factory=dict)  # further data of the command


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """One log entry for the event stream. `event` is the kind of the entry; for every decision it is "decision"."""

    seq: int
    event: str
    time: float
    trial: int | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """A position in an experiment's log, with the data needed to find what changes after it."""

    seq: int
    open_decisions: frozenset[int] | None = None  # event_seq of the decisions that were pending there; None: not known
    last_segment: int = 0  # the internal id of the newest segment


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPoint:
    """One report: a point on the curve of each of its metrics."""

    seq: int
    trial: int
    segment: int
    cause: Cause  # why the segment was started
    iteration: int
    step: int | None  # the training code's own count
    time: float
    seconds: float  # how long the experiment had been running, without pauses
    trial_seconds: float  # how long the trial had been training
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPoint:
    """An improvement of an objective's best value."""

    seq: int
    metric: str
    seconds: float  # how long the experiment had been running, without pauses
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes between two entries of an experiment's log. Rows have the values that they had when they were read."""

    since: int
    bookmark: Bookmark  # at the last entry of these changes; the next changes begin after it
    experiment: ExperimentRecord
    metrics: Sequence[str]
    trials: Sequence[TrialRecord]
    segments: Sequence[TrialSegment]
    decisions: Sequence[DecisionRecord]
    points: Sequence[ReportPoint]
    best: Sequence[BestPoint]
    restarted: bool  # True if a new driver has started; rows that no log entry names may then have changed, too


Across = Literal["step", "user_step", "time", "trial_time", "metric"]
"""The horizontal axis of curves; `Metrics.curves` explains the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSegment:
    """The curve of one segment. `last_iteration` is the iteration of its newest report, which the curve may omit."""

    ordinal: int
    cause: str
    last_iteration: int
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The curve of one trial, with a break between segments."""

    trial: int
    state: str
    best_value: float | None
    segments: Sequence[CurveSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of some trials, with the minimum and maximum of every `width` reports in a row. Width 1 means every report."""

    width: int
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A selection of a trial's logs, and of a part of each log.

    offset: return the part that begins at this byte of the log. None: return the end of the log.
    tail: return only the last lines, at most this many.
    search: return only lines that contain this text, ignoring case.
    limit: return at most this many bytes.
    """

    rank: int | None = None
    segment: int | None = None
    offset: int | None = None
    tail: int | None = None
    search: str | None = None
    limit: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """The output of one rank in one segment: bytes `start` to `end` of its log, as text.

    To continue reading, use `end` as the offset of the next query.

    left_out: the number of bytes between `start` and `end` that were not kept. A line in the text marks each gap.
    complete: True if the rank will print nothing more and the text reaches the end of the log.
    """

    trial: int
    segment: int
    rank: int
    text: str
    start: int
    end: int
    left_out: int
    complete: bool
    time: float  # when the newest part was written, as a Unix timestamp


class OpenLog(NamedTuple):
    """A rank whose log is incomplete in the database, and the node that the rank ran on."""

    trial: int
    segment: int  # ordinal within the trial
    segment_id: str
    rank: int
    node: str  # Ray's id


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """The resource usage of one rank at one moment. `sample_no` counts each rank's samples in a segment from 1."""

    trial: int
    segment: int
    rank: int
    sample_no: int
    time: float
    cpu_s: float  # CPU time used since the segment's start, including child processes
    rss_bytes: int
    gpu_bytes: int | None = None  # allocated GPU memory; this and the next two fields are None if no GPU is in use
    gpu_reserved_bytes: int | None = None
    gpu_percent: float | None = None  # how much of the time the rank's GPUs were busy, in percent


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSeries:
    """The resource usage of one rank during one segment, as lists of equal length, oldest sample first."""

    segment: Annotated[int, About("the ordinal of the segment within its trial")]
    rank: Annotated[int, About("the rank, from 0")]
    x: Annotated[Sequence[float], About("how long the experiment had been running, in seconds")]
    cpu_percent: Annotated[
        Sequence[float | None],
        About("CPU usage since the previous sample or the segment's start, in percent of one core"),
    ]
    rss_bytes: Annotated[Sequence[int], About("resident memory of the process")]
    gpu_bytes: Annotated[Sequence[int | None], About("GPU memory that torch has allocated; null if no GPU is in use")]
    gpu_reserved_bytes: Annotated[
        Sequence[int | None], About("GPU memory that torch has reserved; null if no GPU is in use")
    ]
    gpu_percent: Annotated[Sequence[float | None], About("how much of the time the rank's GPUs were busy, in percent")]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    next_token: str | None


@dataclass(frozen=True, slots=True)
class TrialRows(Page[TrialRecord]):
    fronts: tuple[int | None, ...]
    """The front of each trial, from 1 for the Pareto front; None for a trial on none, or if nobody asked."""
