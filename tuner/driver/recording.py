"""Read the recording of each trial from an experiment's log: its configuration, its curve, and how it ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Entry
from tuner.domain.states import TrialState
from tuner.domain.steady import SteadyTime
from tuner.errors import SpecError
from tuner.space.revisions import Revisions

End = Literal["returned", "failed", "cut"]


@dataclass(frozen=True, slots=True)
class RecordedReport:
    """One report of a trial: its metrics, and the seconds since the trial's previous report or start."""

    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """The recording of one trial.

    Attributes:
        number: the trial's number in the experiment.
        params: the trial's configuration, flat.
        reports: one report for each training_iteration, from 1 on. A report that was repeated after a failure is
            included once.
        end: "returned" if the training function returned on its own, "failed" if the trial failed for good, and "cut" if
            something else ended the trial, so that the rest of its curve is unknown.
        state: the trial's state in the experiment.
        error: why the trial failed; "" if it did not fail.
        space_revision: the revision of the experiment's search space to which `params` belong.
    """

    number: int
    params: Mapping[str, Any]
    reports: tuple[RecordedReport, ...]
    end: End
    state: TrialState
    error: str = ""
    space_revision: int = 0

    @property
    def seconds(self) -> float:
        """Return the seconds of training that led to the trial's reports."""
        return sum(report.seconds for report in self.reports)


@dataclass(frozen=True, slots=True)
class Recording:
    """The trials of an experiment, by number.

    Attributes:
        trials: the trials that were started.
        slots: the maximum number of trials that trained at once.
        startup_s: the median time that a start took, in seconds.
        saves_checkpoints: True if a trial saved a checkpoint, so that paused trials can continue from their checkpoints.
        seconds: the seconds from the first start to the last log entry, excluding those in which only repeats trained.
        forks: how many trials are left out because users continued them from the checkpoint of another trial.
    """

    trials: Mapping[int, RecordedTrial]
    slots: int
    startup_s: float
    saves_checkpoints: bool
    seconds: float
    forks: int = 0

    @property
    def reports(self) -> int:
        """Return the total number of reports of all trials."""
        return sum(len(trial.reports) for trial in self.trials.values())


def within(recorded: Recording, revisions: Revisions) -> tuple[Recording, int]:
    """Return the recording with configurations of the current search space, and the number of trials that are left out.

    A trial is left out if its configuration does not lie in the current space.
    """
    if not revisions.newest:
        return recorded, 0
    trials = {}
    for number, trial in recorded.trials.items():
        if (params := revisions.inside(trial.params, trial.space_revision)) is not None:
            trials[number] = replace(trial, params=params, space_revision=revisions.newest)
    return replace(recorded, trials=trials), len(recorded.trials) - len(trials)


def recording(log: Iterable[Entry]) -> Recording:
    """Return the recording of an experiment's trials, made from its log.

    Repeats are left out, since the search did not use them. Trials that users continued from the checkpoint of another trial are
    left out, too, since their curves have no beginning.

    Raises:
        SpecError: the log cannot be replayed, because reports are missing or the scheduler let a trial continue from another
            trial's checkpoint.
    """
    reader = _Reader()
    for _, entry in log:
        reader.take(entry)
    return reader.done()


@dataclass(slots=True)
class _Trial:
    params: dict[str, Any]
    state: TrialState = TrialState.PENDING
    reports: dict[int, RecordedReport] = field(default_factory=dict)
    clock: float = 0.0  # the steady time of its newest start or report
    end: End = "cut"
    error: str = ""
    space_revision: int = 0
    is_repeat: bool = False
    is_fork: bool = False  # whether it was to start from the checkpoint of another trial, which may have been gone


class _Reader:
    """Builds a recording from the entries of a log."""

    def __init__(self) -> None:
        self._trials: dict[int, _Trial] = {}
        self._open: set[int] = set()
        self._most_open = 0
        self._startups: list[float] = []
        self._saves = False
        self._began: float | None = None
        self._now = 0.0
        self._steady = SteadyTime()
        self._repeats: set[int] = set()  # the repeats that have started and not ended
        self._repeating = 0.0  # seconds in which only repeats trained
        self._space_revision = 0

    def take(self, entry: e.Event | d.Decision) -> None:
        if isinstance(entry, e.Event):
            before, self._now = self._now, max(self._now, self._steady.take(entry, self._now))
            if (self._repeats or self._open) and all(self._trials[number].is_repeat for number in self._open):
                self._repeating += self._now - before
        elif isinstance(entry, d.Stop | d.Complete | d.Fail | d.Cancel):
            self._repeats.discard(entry.trial)
        match entry:
            case e.Amended(changes=changes) if "former_spaces" in changes:
                self._space_revision = len(changes["former_spaces"])
            case d.Start(number=number, params=params, space_revision=revision, repeat_of=repeat_of, checkpoint=source):
                trial = _Trial(dict(params or {}), is_repeat=repeat_of is not None, is_fork=bool(source))
                trial.space_revision = self._space_revision if revision is None else revision
                self._trials[number] = trial
                if trial.is_repeat:
                    self._repeats.add(number)
            case d.Exploit(trial=number):
                raise SpecError(
                    f"trial {number} continued from another trial's checkpoint with a changed configuration, as "
                    "in population based training: its curve has no single configuration, so it cannot be "
                    "replayed"
                )
            case d.Stop(trial=number):
                self._trials[number].state = TrialState.STOPPED
            case d.Complete(trial=number):
                self._trials[number].state = TrialState.COMPLETED
            case d.Fail(trial=number, reason=reason):
                trial = self._trials[number]
                trial.state, trial.end, trial.error = TrialState.FAILED, "failed", reason
            case d.Cancel(trial=number):
                self._trials[number].state = TrialState.CANCELLED
            case d.Pause(trial=number):
                self._trials[number].state = TrialState.PAUSED
            case d.Resume(trial=number) | d.Retry(trial=number):
                self._trials[number].state = TrialState.PENDING
            case e.DriverStarted():
                self._open.clear()  # the segments of the previous driver have ended
            case e.SegmentStarted(trial=number):
                self._startups.append(entry.startup_s)
                self._opened(number, self._steady.at(entry.time))
            case e.Reported():
                self._report(entry)
            case e.CheckpointSaved():
                self._saves = True
            case e.Drawn(trial=number, name=name, value=value):
                self._trials[number].params[name] = value
            case e.SegmentEnded(trial=number, outcome=outcome):
                self._open.discard(number)
                if outcome == "returned":
                    self._trials[number].end = "returned"

    def _opened(self, number: int, time: float) -> None:
        """Record that a trial's ranks train from this time on, unless a report that arrived before has shown it."""
        if number in self._open:
            return
        trial = self._trials[number]
        self._began = time if self._began is None else self._began
        trial.clock, trial.end = time, "cut"
        if trial.state is TrialState.PENDING:
            trial.state = TrialState.RUNNING
        self._open.add(number)
        self._most_open = max(self._most_open, len(self._open))

    def _report(self, event: e.Reported) -> None:
        trial, at = self._trials[event.trial], self._steady.at(event.time)
        self._opened(event.trial, at)
        trial.reports[event.iteration] = RecordedReport(dict(event.metrics), max(at - trial.clock, 0.0))
        trial.clock = at
        self._saves = self._saves or event.checkpoint is not None

    def done(self) -> Recording:
        found, forks = {}, 0
        for number, trial in self._trials.items():
            if trial.is_repeat:
                continue
            if trial.is_fork and 1 not in trial.reports:
                forks += 1
                continue
            if sorted(trial.reports) != list(range(1, len(trial.reports) + 1)):
                raise SpecError(f"reports of trial {number} are missing from the log, so it cannot be replayed")
            reports = tuple(trial.reports[i] for i in range(1, len(trial.reports) + 1))
            if reports or trial.end != "cut":  # the pace of a trial that never reported is unknown
                found[number] = RecordedTrial(
                    number, trial.params, reports, trial.end, trial.state, trial.error, trial.space_revision
                )
        startup = statistics.median(self._startups) if self._startups else 0.0
        seconds = self._now - self._began - self._repeating if self._began is not None else 0.0
        return Recording(found, max(self._most_open, 1), startup, self._saves, seconds, forks)
