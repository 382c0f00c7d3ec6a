"""Manage segments: plan them, open them when a slot is free, record that their ranks have started, end them, and close them.

`tuner.domain.states.SEGMENT_CHANGES` is the table of the legal changes of a segment's state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from tuner.domain.segments import CheckpointInfo, Leave
from tuner.domain.states import SegmentState, TrialState
from tuner.domain.trial import Cause, Population, Segment, Trial
from tuner.driver.core.actions import Interrupt, RunSegment
from tuner.driver.core.state.checkpoints import CheckpointLedger


class Segments:
    """Plans, opens and closes the segments of all trials. Part of `State`. Only this class changes the state of a segment.

    start_time: a function that returns the value of time_attr at a checkpoint; see `Progress.start_time`.
    workers: the number of ranks of a trial; if trials are elastic, the smallest number.
    """

    def __init__(
        self,
        trials: Population,
        checkpoints: CheckpointLedger,
        start_time: Callable[[Trial, CheckpointInfo | None], float],
        workers: int,
    ) -> None:
        self._trials, self._checkpoints, self._start_time = trials, checkpoints, start_time
        self._workers = workers
        self.open = 0  # number of segments that hold a worker group
        self.holding: dict[int, int] = {}  # trial -> number of ranks of its open segment
        self.planned: dict[int, None] = {}  # trials with a planned segment
        self.ready: deque[int] = deque()  # trials whose next segment waits for a slot
        self.awaiting: dict[int, None] = {}  # trials whose next segment waits for the upload of its checkpoint
        self.went_back: list[int] = []  # trials whose exploit was undone since the newest event
        self._decided: dict[int, int] = {}  # trial -> event_seq of the decision that its next segment carries out

    def plan(
        self,
        trial: Trial,
        cause: Cause,
        decision_seq: int,
        source: CheckpointInfo | None = None,
        workers: int | None = None,
    ) -> Interrupt | None:
        """Plan the trial's next segment in place of any earlier plan, and begin to end the open segment.

        Return the interrupt for its ranks, if one is needed.

        The next segment opens once the current one has ended and a slot is free.

        decision_seq: event_seq of the decision to run the segment.
        source: the checkpoint to start from. If it is None or does not exist any more, the segment starts from the
            checkpoint that is the newest usable one when the segment opens.
        workers: the number of ranks that the segment should get; None: as many as the trial's newest segment.
        """
        self.drop_plan(trial)
        self._decided[trial.number] = decision_seq
        trial.next = Segment(
            len(trial.segments) + 1,
            cause,
            trial.params,
            source.step if source else 0,
            source,
            space_revision=trial.space_revision,
            workers=workers or (trial.segments[-1].workers if trial.segments else self._workers),
        )
        self.planned[trial.number] = None
        self._checkpoints.note_sources(trial)
        if trial.state is TrialState.PAUSED or not trial.holds_resources:
            self._await_segment(trial)
        if trial.holds_resources:
            return self.leave(trial, "pause" if cause == "resize" else "exploit")
        self.ready.append(trial.number)
        return None

    def drop_plan(self, trial: Trial) -> None:
        """Drop the trial's planned segment, if it has one."""
        if trial.next is not None:
            trial.next.move(SegmentState.DROPPED)
            trial.next = None
            del self.planned[trial.number]
            self._checkpoints.note_sources(trial)

    @property
    def ranks(self) -> int:
        """Return how many ranks all open segments have together."""
        return sum(self.holding.values())

    def open_next(self, slots: int, now: float, elastic: tuple[int, int] | None = None) -> Iterator[RunSegment]:
        """Open planned segments in the order in which they became ready, until no slot is free. Yield an action for each.

        A trial whose checkpoint is still being uploaded is added to `awaiting` instead, and takes no slot.

        elastic: for elastic trials, how many ranks the cluster holds, and how many the experiment may use now. A segment
            opens as soon as its minimum number of ranks is free on the cluster. It gets the planned number, limited by what
            the experiment may use after the minimum is reserved for each segment that waits behind it.
        """
        while self.ready and self.open < slots:
            room = 0
            if elastic is not None:
                if self.open and self.ranks + self._workers > elastic[0]:
                    return
                room = elastic[1] - self.ranks - self._workers * (len(self.ready) - 1)
            trial = self._trials[self.ready.popleft()]
            segment = trial.next
            if segment is None or trial.holds_resources:  # planned anew after it had become ready
                continue
            if self._awaits(trial) is not None:
                self.awaiting[trial.number] = None
                continue
            segment.move(SegmentState.LAUNCHING)
            if elastic is not None:
                segment.workers = max(self._workers, min(segment.workers, room))
            self.holding[trial.number] = segment.workers
            del self.planned[trial.number]
            segment.opened_at = now
            if segment.source is None or not self._checkpoints.exists(segment.source.id):
                segment.source = trial.checkpoint
                self._go_back(trial, segment)
            segment.start_iteration = segment.iteration = segment.source.step if segment.source else 0
            trial.next = None
            trial.segments.append(segment)
            trial.iteration = segment.start_iteration
            trial.t = segment.start_t = self._start_time(trial, segment.source)
            self._checkpoints.note_sources(trial)
            self.open += 1
            yield RunSegment(trial.ref, self._decided.pop(trial.number, 0))

    def _go_back(self, trial: Trial, segment: Segment) -> None:
        """Give a segment that undoes an exploit the configuration under which its checkpoint was saved.

        The weights were trained with that configuration; the network may not even fit the donor's configuration.
        """
        kept = self._checkpoints.go_back(trial, segment.ordinal, segment.source)
        if kept is None:
            return
        before = trial.segments[kept.segment - 1]
        trial.params, trial.space_revision = dict(before.params), before.space_revision
        segment.params, segment.space_revision = trial.params, before.space_revision
        if segment.cause == "exploit":
            segment.cause = "retry"
        self.went_back.append(trial.number)

    def _awaits(self, trial: Trial) -> CheckpointInfo | None:
        """Return the checkpoint from which the trial's next segment must start, if it is not uploaded yet; else None."""
        if trial.next is None:
            return None
        source = trial.next.source
        if source is not None and self._checkpoints.exists(source.id):
            return None
        return self._checkpoints.awaits(trial)

    def wake(self) -> None:
        """Let trials whose uploads have ended start before trials that became ready later."""
        woken = [number for number in self.awaiting if self._awaits(self._trials[number]) is None]
        for number in woken:
            del self.awaiting[number]
        self.ready.extendleft(reversed(woken))

    @staticmethod
    def enter(trial: Trial, segment: Segment, time: float, steady: float) -> bool:
        """Record that the ranks have entered the training function. Return False if a verdict is already ending the segment.

        The driver learns this from `SegmentStarted`, or from the first report if that arrives earlier.

        steady: the steady time of that event; see `SteadyTime`.
        """
        segment.started_at, segment.clock, segment.saved_at = time, steady, steady
        trial.waiting = ""
        trial.started_at = time if trial.started_at is None else trial.started_at
        if segment.state is SegmentState.LEAVING:
            return False
        segment.move(SegmentState.RUNNING)
        return True

    @staticmethod
    def leave(trial: Trial, how: Leave) -> Interrupt | None:
        """Begin to end the trial's open segment, if it has one. Return the interrupt for the ranks, if one is needed.

        No interrupt is needed if the ranks already wait for a verdict, or if a verdict is already ending the segment. A stop
        replaces an earlier verdict, because the trial will not continue.
        """
        segment = trial.segment
        if segment is None or not segment.open:
            return None
        if segment.state is SegmentState.LEAVING:
            segment.leaving = "stop" if how == "stop" else segment.leaving
            return None
        segment.move(SegmentState.LEAVING)
        segment.leaving = how
        waits = segment.milestone is not None and segment.report_no >= segment.milestone
        return None if waits else Interrupt(trial.ref, how)

    def close(self, trial: Trial, end: SegmentState, time: float, uploading: Iterable[CheckpointInfo] = ()) -> None:
        """Close the trial's open segment, and free its slot. If a next segment is planned, it becomes ready to open.

        uploading: the checkpoints whose upload continues.
        """
        segment = trial.segments[-1]
        segment.move(end)
        segment.ended_at = time
        self._checkpoints.segment_ended(trial, segment, uploading)
        trial.waiting = ""
        self.open -= 1
        del self.holding[trial.number]
        if trial.next is not None:
            self._await_segment(trial)
            self.ready.append(trial.number)

    def _await_segment(self, trial: Trial) -> None:
        """Put the trial into state `pending`, in which it stays until its next segment runs."""
        if trial.state is not TrialState.PENDING:
            self._trials.move(trial.number, TrialState.PENDING)
