"""A trial and its segments as the core knows them, and the population of all trials of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.domain.experiment import Objective, Scope
from tuner.domain.segments import CheckpointInfo, Failure, Leave, SegmentRef
from tuner.domain.states import OPEN_SEGMENTS, SegmentState, TrialState, change_segment, change_trial

Cause = Literal["start", "retry", "resume", "exploit", "fork", "resize"]


@dataclass(slots=True)
class Segment:
    """One uninterrupted execution of a trial, with one configuration and one starting checkpoint."""

    ordinal: int  # 1-based within the trial
    cause: Cause
    params: Mapping[str, Any]
    start_iteration: int  # training_iteration of the checkpoint that it starts from; 0 without a checkpoint
    source: CheckpointInfo | None
    state: SegmentState = SegmentState.PLANNED
    leaving: Leave | None = None  # the verdict that ends it, if any
    report_no: int = 0  # report_no of its newest report
    iteration: int = 0  # training_iteration of its newest report; before the first report, start_iteration
    milestone: int | None = None  # report_no at which its ranks wait for a verdict; None: they do not wait
    decide_at: float | None = None  # value of time_attr at or above which the scheduler decides; None: never
    decided_at: int = 0  # report_no of the newest milestone at which the scheduler was asked
    offer: int | None = None  # report_no of the next report that will offer a checkpoint
    offers: bool = False  # whether its newest report has a checkpoint, or offers one
    scored: bool = True  # whether its newest report had the objective
    saved_at: float = 0.0  # steady time of its start or its newest checkpoint; see `SteadyTime`
    commanded: str | None = None  # what to do at its next report: "pause" if a user wants it, "yield" if the host does
    room_for: str = ""  # why the segment has to yield, in words
    opened_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    clock: float = 0.0  # steady time of its start or newest report
    trained_s: float = 0.0  # seconds from its start to its newest report
    placement: Mapping[str, Any] = field(default_factory=dict)
    startup_s: float = 0.0
    held_s: float | None = None  # the part of startup_s during which its group had resources
    warm: bool = False
    space_revision: int = 0  # the revision of the search space that `params` are from
    start_t: float = 0.0  # time_attr's value at its start
    workers: int = 1  # number of ranks; while it is planned, the number that it should get

    @property
    def open(self) -> bool:
        """Return whether the segment still holds a slot and a worker group."""
        return self.state in OPEN_SEGMENTS

    @property
    def started(self) -> bool:
        """Return whether all ranks have entered the training function, as far as the driver knows."""
        return self.started_at is not None

    @property
    def outcome(self) -> str | None:
        """Return how the segment ended; None if it has not ended."""
        return str(self.state) if self.state.ended else None

    def move(self, state: SegmentState) -> None:
        """Change the state of the segment. Raise IllegalTransition if the table `SEGMENT_CHANGES` has no such change."""
        self.state = change_segment(self.state, state)


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint that exists, with the objective and the time_attr value of its report."""

    info: CheckpointInfo
    value: float | None
    segment: int  # ordinal of the segment that saved it
    t: float | None = None


@dataclass(frozen=True, slots=True)
class ScoredReport:
    """A finite value of the objective, and the report that contained it."""

    value: float
    iteration: int
    segment: int  # ordinal


DRAWN_AS = "drawn_as"
"""The tag of a trial that has the values of `sample_from` of another trial, because it is a user's retry or fork of that one."""


def drawn_as(tags: Mapping[str, Any], number: int) -> int:
    """Return the number by which functions of `sample_from` draw for the trial with these tags and this number."""
    return int(tags.get(DRAWN_AS, number))


@dataclass(slots=True)
class Trial:
    number: int
    params: dict[str, Any]  # flat: "optimizer/lr" -> JSON value
    state: TrialState = TrialState.PENDING
    iteration: int = 0  # training_iteration of the newest report
    t: float = 0.0  # time_attr's value of the newest report; the iteration by default
    last: dict[str, float] = field(default_factory=dict)  # the newest value of each metric
    last_value: float | None = None  # newest finite value of the objective
    best_value: float | None = None
    best_iteration: int | None = None
    best_segment: int | None = None  # ordinal of the segment that reported best_value
    last_mark: ScoredReport | None = None  # the report that had last_value
    feasible: bool | None = None  # whether its result satisfies the constraints; None without constraints or a result
    feasible_now: bool | None = None  # whether its newest report satisfies the constraints
    feasible_best: ScoredReport | None = None  # the best report within the constraints
    reports: int = 0  # reports of all segments
    running_s: float = 0.0  # seconds between its reports, over all segments
    failures: int = 0  # failures of the user's code
    system_failures: int = 0
    failure: Failure | None = None  # the latest
    reason: str = ""  # reason for the latest decision about it
    waiting: str = ""  # what its launch waits for
    diverged: bool = False  # whether its newest objective is NaN or infinite
    held: bool = False  # True if no scheduler may resume it, because a user paused it or it waits for a donor
    paused_by_scheduler: bool = False  # True if the scheduler may resume it as soon as it is not held
    # the checkpoint from which its next segment would start; see `CheckpointLedger`
    checkpoint: CheckpointInfo | None = None
    # The trial's own checkpoints, by id, oldest first.
    checkpoints: dict[str, KeptCheckpoint] = field(default_factory=dict)
    inherited: CheckpointInfo | None = None  # the checkpoint of another trial from which the latest exploit continued
    # Ordinal of the segment of the latest exploit: checkpoints of earlier segments are older than the exploit.
    line_begins: int = 1
    # True if checkpoints from before the latest exploit are usable once all newer ones are lost
    goes_back: bool = False
    next: Segment | None = None  # the planned segment: it opens when a slot is free and the current segment has ended
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    segments: list[Segment] = field(default_factory=list)
    searcher_state: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    space_revision: int = 0  # which search space `params` are from: 0 is the first one
    values: dict[int, float] = field(default_factory=dict)  # iteration -> objective; the newest segment wins
    times: dict[int, float] = field(default_factory=dict)  # iteration -> time_attr, if that is a metric
    repeat_of: int | None = None  # the number of the trial whose configuration it evaluates again

    @property
    def segment(self) -> Segment | None:
        """Return the newest segment that was opened; None if none was."""
        return self.segments[-1] if self.segments else None

    @property
    def drawn_as(self) -> int:
        """Return the number of the trial by which functions of `sample_from` draw; see `drawn_as`."""
        return drawn_as(self.tags, self.number)

    @property
    def ref(self) -> SegmentRef:
        """Return the trial's number and the ordinal of its newest segment, as a SegmentRef."""
        return SegmentRef(self.number, len(self.segments))

    def mark(self, scope: Scope) -> ScoredReport | None:
        """Return the report whose value counts, or None if the trial has no finite value.

        With scope "last", it is the last report. Otherwise it is the best one that satisfies the constraints, or the best of
        all reports if none does.
        """
        if scope == "last":
            return self.last_mark
        if self.feasible_best is not None or self.best_value is None:
            return self.feasible_best
        return ScoredReport(self.best_value, self.best_iteration or 0, self.best_segment or len(self.segments))

    def params_at(self, mark: ScoredReport) -> Mapping[str, Any]:
        """Return the configuration with which the trial made this report. Under PBT, the current one may differ."""
        return self.segments[mark.segment - 1].params if 0 < mark.segment <= len(self.segments) else self.params

    def best_checkpoint(self, objective: Objective) -> CheckpointInfo | None:
        """Return the ready checkpoint with the best finite objective, or the newest ready one if no objective is finite.

        Of equally good ones, return the oldest, since the best report of a trial is its first one with the best value.
        Return None if the trial has no ready checkpoint.
        """
        ready = [kept for kept in self.checkpoints.values() if kept.info.ready]
        scored = [kept for kept in ready if kept.value is not None]
        if scored:
            return max(
                scored, key=lambda kept: (objective.score(kept.value or 0.0), -kept.segment, -kept.info.step)
            ).info
        return max(ready, key=lambda kept: (kept.segment, kept.info.step)).info if ready else None

    @property
    def holds_resources(self) -> bool:
        """Return whether the trial's newest segment is open."""
        return bool(self.segments) and self.segments[-1].open


class Population:
    """The trials of an experiment, by number and by state.

    Schedulers and searchers read the population. Only the core's `State` changes it, with `add` and `move`. `put` is for
    copies of a population.
    """

    def __init__(self) -> None:
        self._trials: dict[int, Trial] = {}
        self._by_state: dict[TrialState, dict[int, None]] = {state: {} for state in TrialState}
        self._searched: Population | None = None  # the trials without repeats, once there is a repeat

    @property
    def searched(self) -> Population:
        """Return the trials of the search, without repeats. Schedulers see only these."""
        return self if self._searched is None else self._searched

    def __getitem__(self, number: int) -> Trial:
        return self._trials[number]

    def get(self, number: int) -> Trial | None:
        return self._trials.get(number)

    def __contains__(self, number: int) -> bool:
        return number in self._trials

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._trials.values())

    def __reversed__(self) -> Iterator[Trial]:
        return reversed(self._trials.values())

    def in_state(self, state: TrialState) -> list[int]:
        """Return the numbers of the trials in this state, in the order in which they entered it."""
        return list(self._by_state[state])

    def count(self, state: TrialState) -> int:
        return len(self._by_state[state])

    def add(self, trial: Trial) -> None:
        if trial.repeat_of is not None and self._searched is None:
            self._searched = Population()
            self._searched._trials = dict(self._trials)
            self._searched._by_state = {state: dict(numbers) for state, numbers in self._by_state.items()}
        elif trial.repeat_of is None and self._searched is not None:
            self._searched.add(trial)
        self._trials[trial.number] = trial
        self._by_state[trial.state][trial.number] = None

    def put(self, trial: Trial) -> None:
        """Add a trial to a copy of a population, or replace the trial with the same number."""
        if (before := self._trials.get(trial.number)) is not None:
            self._forget(before.number, before.state)
        self.add(trial)

    def move(self, number: int, state: TrialState) -> None:
        trial = self._trials[number]
        new = change_trial(trial.state, state)
        self._forget(number, trial.state)
        trial.state = new
        self._by_state[new][number] = None
        if self._searched is not None and trial.repeat_of is None:
            self._searched._by_state[new][number] = None

    def _forget(self, number: int, state: TrialState) -> None:
        del self._by_state[state][number]
        if self._searched is not None:
            self._searched._by_state[state].pop(number, None)
