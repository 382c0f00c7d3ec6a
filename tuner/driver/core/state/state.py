"""The state of one experiment, and `apply`, which applies a log entry to it.

In a running driver, `Core` applies each entry as it logs it. After a restart, it applies the committed entries. Both lead to
the same state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.decisions import Decision
from tuner.domain.events import Event
from tuner.domain.experiment import Spec
from tuner.domain.segments import UNWRITABLE, CheckpointInfo, Failure, SegmentRef
from tuner.domain.states import ExperimentState, SegmentState, TrialState, change_experiment
from tuner.domain.steady import SteadyTime
from tuner.domain.trial import Population, Segment, Trial
from tuner.driver.core.actions import Action, DeleteCheckpoint, Interrupt
from tuner.driver.core.state import commands, ending, limits
from tuner.driver.core.state.checkpoints import CheckpointLedger
from tuner.driver.core.state.effects import Effects
from tuner.driver.core.state.enqueued import EnqueuedTrial
from tuner.driver.core.state.leaderboard import Leaderboard
from tuner.driver.core.state.outlook import Outlook
from tuner.driver.core.state.pauses import Pauses
from tuner.driver.core.state.progress import Progress
from tuner.driver.core.state.repeats import Repeats
from tuner.driver.core.state.saving import SaveInterval
from tuner.driver.core.state.segments import Segments
from tuner.driver.core.state.sizes import Sizes
from tuner.driver.core.state.usage import Usage
from tuner.schedulers.base import (
    Fact,
    Fitted,
    Scheduler,
    StartMeasured,
    TrialEnded,
    TrialReported,
    TrialRestarted,
    TrialStarted,
)
from tuner.schedulers.stoppers import Stopper
from tuner.search.base import Searcher
from tuner.space.revisions import Revisions

_S, _X = TrialState, ExperimentState

_NOTHING: dict[Any, Any] = {}
"""Trials that have ended share this empty dict, to save memory. Nobody changes it, since they make no more reports."""


class Unsavable(NamedTuple):
    """The failure for which an experiment is paused, because no trial can save checkpoints.

    seq: the event_seq of the failure.
    why: why checkpoints cannot be saved, such as "a disk is full".
    reason: the reason of the pause, in words.
    """

    seq: int
    why: str
    reason: str


_REMEDIES = {
    "disk_full": ("a disk is full", "make room"),
    "storage": ("the storage of the checkpoints cannot be used", "repair it"),
}
"""The causes of failures that pause the experiment: why checkpoints cannot be saved, and what the user has to do."""


class State:
    """The state of one experiment: its trials with their segments and checkpoints, the best trial, and its progress.

    Any code may read the state. Only `apply` and `set_milestone` change it. The states of the scheduler and the stopper are
    part of it, too: `apply` passes all facts on to both.
    """

    def __init__(self, spec: Spec, scheduler: Scheduler, searcher: Searcher, stopper: Stopper | None = None) -> None:
        self.spec, self.scheduler, self.searcher, self.stopper = spec, scheduler, searcher, stopper
        self.state = _X.PENDING
        self.trials = Population()
        self.epoch = 0
        self.seq = 0  # event_seq of the newest entry
        self.now = 0.0  # time of the newest event
        self.steady = SteadyTime()
        self.ran = 0.0  # steady time of the newest event
        self.ran_before = 0.0  # steady time of the previous event
        self.running_s = 0.0  # seconds of running time, under any driver, since its first trial started
        self.pauses = Pauses()
        self.queue: deque[EnqueuedTrial] = deque()  # enqueued trials that have not been started
        self.late: set[int] = set()  # the trials of users that may use the time that is reserved for repeats
        self.asked = 0  # number of trials that users have enqueued so far
        self.revisions = Revisions([searcher.context.space])  # all search spaces so far
        self.usage = Usage(spec.scaling)
        self.saving = SaveInterval(spec.checkpoint, self.usage)
        self.counted: Sequence[float] = (0.0,) * len(limits.LIMITS)  # the counts at the user's last `continue`
        self.capped = False  # the GPU hours are used up, so every segment is ended as soon as possible
        self.late_resume: e.Commanded | None = None  # a resume that came when the time or the GPU hours were used up
        self.begun = False  # whether a trial has ever started
        self.error: str | None = None
        self.finishing: str | None = None  # why no new trial is started; None if trials may start
        self.failing = False  # whether `finishing` is a failure of the whole experiment
        self.fatal: int | None = None  # the trial whose failure `finishing` names, if it ends the experiment
        self.exhausted = False  # whether the searcher has no more configurations
        self.leaderboard = Leaderboard(spec, searcher.metric_constraints())
        self.repeats = Repeats(spec, self.trials, self.leaderboard)
        self.checkpoints = CheckpointLedger(self.trials, spec.checkpoint, spec.objective)
        self.keeps_values = True  # False if nobody reads `Trial.values` of trials that have ended
        self.outlook = Outlook(spec)
        self.progress = Progress(spec, self.leaderboard, self.checkpoints, self.outlook)
        self.segments = Segments(self.trials, self.checkpoints, self.progress.start_time, spec.scaling.num_workers)
        self.sizes = Sizes(spec.scaling, spec.objective, self.trials, self.segments, self.leaderboard)
        self.waiting_exploits: dict[int, d.Exploit] = {}  # trial -> the exploit that waits for its donor's checkpoint
        # Metrics that `stop` uses and that were never reported.
        self.used_by_stop = stopper.metrics() if stopper is not None else frozenset()
        constrained = {one.metric for one in self.leaderboard.constraints} - {o.metric for o in spec.objectives}
        # The metrics of `stop` and of constraints that no report has had yet.
        self.unseen = self.used_by_stop | constrained
        self.missed: tuple[str, ...] = ()  # the metrics of `unseen` that notes have named, in the order of the notes
        self.warned_ends = 0  # how many segments ended with a warning
        self.unsavable: Unsavable | None = None  # why the experiment was paused last, if checkpoints could not be saved
        self.started_over = 0  # how often a paused trial was resumed that had trained and had no checkpoint
        self.unsaved_ends = 0  # how many segments of ended trials ended because a checkpoint could not be saved
        self.room: int | None = None  # how many trials there is room for at once; used if the spec sets no limit
        # Late uploads that the previous driver left behind.
        self.lost_uploads: list[tuple[int, int, CheckpointInfo]] = []
        self._effects = Effects()

    # -- queries ---------------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Return how many segments may be open at once: the limit in the spec, or else what the cluster has room for."""
        return self.spec.limits.max_concurrent_trials or self.room or 1

    @property
    def workers(self) -> tuple[int, int]:
        """Return how many ranks the cluster holds, and how many the experiment may use now. For elastic trials only."""
        return self.sizes.room(self.slots)

    @property
    def startable(self) -> int:
        """Return how many trials may still be started: those of users, and those of the searcher up to `num_samples`."""
        if self.finishing is not None:
            return 0
        total = self.spec.num_samples if self.scheduler.PROPOSES else self.searcher.total()
        if self.exhausted or total is None:
            return len(self.queue) if self.exhausted else self.slots
        return max(0, total + self.asked - len(self.trials.searched))

    def start_t(self, trial: Trial) -> float:
        """Return the value of time_attr at the start of the trial's newest segment."""
        return trial.segments[-1].start_t

    @property
    def counts_time(self) -> bool:
        """Return whether time counts towards the time budget: the experiment is running and its first trial has started."""
        return self.begun and self.state in (_X.RUNNING, _X.PAUSING)

    @property
    def resumes_late(self) -> bool:
        """Return whether `late_resume` is to be carried out now: a user has raised the limit before it has ended the search."""
        return self.late_resume is not None and self.finishing is None and not limits.end_search(self)

    @property
    def all_ended(self) -> bool:
        """Return whether no trial is left that may still run."""
        return not any(self.trials.count(state) for state in (_S.PENDING, _S.RUNNING, _S.PAUSED))

    def segment(self, ref: SegmentRef) -> Segment | None:
        """Return the segment with this reference if it is open, else None. Only a trial's newest segment can be open."""
        return self.open_segment(*ref)

    def open_segment(self, number: int, ordinal: int) -> Segment | None:
        """Return the trial's segment with this ordinal if it is open, else None."""
        trial = self.trials.get(number)
        if trial is None or not trial.segments:
            return None
        segment = trial.segments[-1]
        return segment if segment.ordinal == ordinal and segment.open else None

    def summary(self) -> dict[str, object]:
        """Return the summary for the experiment's row: the best trial, the number of trials by state, why the search ended."""
        counts = {str(state): self.trials.count(state) for state in TrialState}
        best = self.leaderboard.summary(self.trials, self.repeats.best, self.repeats.summary())
        hours = {
            "gpu_hours": self.usage.gpu_hours(self.ran),
            "gpu_hours_saved": self.usage.gpu_hours_saved(),
            "cpu_hours": self.usage.cpu_hours(self.ran),
        }
        times = {"pauses": list(self.pauses.spans)}
        spent = {"budget_spent": self.scheduler.budget_spent()}
        return {
            "best": best,
            "counts": counts,
            "reason": self.finishing or (self.unsavable.reason if self.unsavable else ""),
            "error": self.error,
            **hours,
            **spent,
            **times,
        }

    # -- what changes it -------------------------------------------------------------------------------------------------

    def apply(self, seq: int, entry: Event | Decision, effects: Effects) -> list[Fact]:
        """Apply a log entry. Return the facts that the scheduler may have to decide about.

        seq: the event_seq of the entry.
        entry: an event or decision that has been, or is about to be, committed.
        effects: collects the trials that change and the actions that follow. A fold after a restart ignores it.
        """
        self._effects = effects
        self.seq = max(self.seq, seq)
        if isinstance(entry, Event):
            self._tick(entry)
            facts = self._of_the_search(self._apply_event(entry))
            self._record(facts)
        else:
            facts = self._of_the_search(self._apply_decision(seq, entry))
            self._record(facts)
            if not self._is_of_a_repeat(entry):
                self.scheduler.enacted(entry, self.trials.searched)
        if self.segments.awaiting:
            self.segments.wake()
        if self.segments.ready:
            self._open_ready()
        if not self.segments.open:
            ending.settle(self)
        if self.state.ended and self.spec.executor != "agents":  # hosts take no word from ranks whose segment has ended
            self.checkpoints.experiment_ended()
        self.pauses.follow(self.state, self.now)
        for number, info in self.checkpoints.take_decided():
            self.touch(number)
            self.act(DeleteCheckpoint(number, info, lost=info.id in self.checkpoints.lost))
        for number in self.checkpoints.take_moved():
            self.touch(number)
        return facts

    def _record(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self.scheduler.record(fact, self.trials.searched)
            if self.stopper is not None:
                self.stopper.record(fact, self.trials.searched)

    def _of_the_search(self, facts: list[Fact]) -> list[Fact]:
        """Leave out facts about repeats. Repeats start after the search ends, so the scheduler and the stopper see none."""
        if not self.repeats.made:
            return facts
        return [fact for fact in facts if isinstance(fact, Fitted) or self.trials[fact.trial].repeat_of is None]

    def _is_of_a_repeat(self, decision: Decision) -> bool:
        """Return whether a decision is about a repeat."""
        if isinstance(decision, d.Start):
            return decision.repeat_of is not None
        number = None if isinstance(decision, d.Finish) else decision.trial
        return number is not None and self.trials[number].repeat_of is not None

    @staticmethod
    def set_milestone(segment: Segment, report_no: int | None, decide_at: float | None, asked: bool = False) -> None:
        """Record the report at which the ranks of an open segment will wait next. The ranks learn of it after this call.

        report_no: the number of that report; None if the ranks never wait again.
        decide_at: the value of time_attr at or above which the scheduler makes its next decision; None if it makes none.
        asked: True if the scheduler has already decided about the newest report.

        This is the only change that is not logged. If the driver dies, its ranks die too, so the next driver has no use
        for this value. Log entries depend on it only after the ranks have reported again.
        """
        segment.milestone, segment.decide_at = report_no, decide_at
        if asked:
            segment.decided_at = segment.report_no

    def _tick(self, event: Event) -> None:
        if self.resumes_late:
            self.late_resume = None  # it was carried out after the event before
        if isinstance(event, e.ClockJumped):
            self.pauses.without_driver(max(event.start, self.now), event.start + event.seconds)
        steady = self.steady.take(event, self.ran)
        if self.begun:
            if self.counts_time and not isinstance(event, e.DriverStarted):
                self.running_s += max(0.0, steady - self.ran)
        else:
            self.begun = isinstance(event, (e.SegmentStarted, e.Reported))
        if isinstance(event, e.DriverStarted) and self.epoch:
            self.pauses.without_driver(self.now, event.time)
        self.now = max(self.now, event.time)
        self.ran_before, self.ran = self.ran, max(self.ran, steady)
        self.saving.fresh = False
        self.segments.went_back.clear()

    def _apply_event(self, event: Event) -> list[Fact]:
        """Apply an event. Return the facts about which the scheduler may have to decide."""
        match event:
            case e.Reported():
                return self._apply_report(event)
            case e.SegmentStarted():
                return self._apply_start(event)
            case e.SegmentEnded():
                return self._apply_end(event)
            case e.ModelFitted():
                return [Fitted(payload=event.payload)] if event.payload else []  # empty: the fit failed
            case e.DriverStarted():
                self._apply_takeover(event)
            case e.Waiting():
                self.touch(event.trial).waiting = event.reason
            case e.StopJudged():
                functions = self.stopper.functions() if self.stopper is not None else []
                for stopper, answer in zip(functions, event.answers, strict=False):
                    stopper.answered(event.trial, event.segment, event.iteration, answer)
            case e.CheckpointSaved():
                trial = self.touch(event.trial)
                self._keep(trial, event.segment, event.checkpoint)
                self._forget_values(trial)
            case e.CheckpointDeleted():
                self.checkpoints.deleted(self.touch(event.trial), event.checkpoint)
            case e.UploadFailed():
                trial = self.touch(event.trial)
                self.checkpoints.upload_failed(event.checkpoint.id)
                if UNWRITABLE in event.reason:
                    self._pause_until_it_saves("storage", f"trial {event.trial}: {event.reason}")
                self._forget_values(trial)
            case e.Commanded():
                commands.apply(self, event)
            case e.Amended():
                commands.amend(self, event.changes)
            case e.Enqueued():
                commands.enqueue(self, [EnqueuedTrial(**point, reason=event.reason) for point in event.points])
            case e.Pinned():
                self.checkpoints.pin(event.checkpoint, event.pinned)
            case e.GpuHoursSpent():
                self.finishing = self.finishing or limits.spent(event)
                self.capped = True
                self._end_leaving()
            case e.RoomWanted():
                commands.make_room(self, event)
            case e.SlotsChanged():
                self.room = event.slots
            case e.WorkersChanged():
                self.sizes.granted = event.workers
                self.sizes.held = max(self.sizes.held or 0, event.workers)
            case e.BudgetSpent():
                self.finishing = self.finishing or limits.spent(event)
            case e.ClockJumped():
                pass
            case e.Suggested():
                self.exhausted = self.exhausted or (event.params is None and not event.outdated)
            case e.Drawn():
                trial = self.touch(event.trial)
                trial.params = trial.segments[-1].params = {**trial.params, event.name: event.value}
                trial.searcher_state = {**trial.searcher_state, **event.state}
            case e.Noted():
                trial = self.touch(event.trial)
                trial.tags = {**trial.tags, "notes": {**trial.tags.get("notes", {}), **event.notes}}
            case _:
                assert_never(event)
        return []

    def _apply_report(self, event: e.Reported) -> list[Fact]:
        trial = self.touch(event.trial)
        segment = trial.segments[-1]
        facts: list[Fact] = [] if segment.started else self._enter(trial, segment, event.time)
        if self.unseen:
            self.unseen -= event.metrics.keys()
            self.missed += tuple(sorted(self.unseen.difference(self.missed)))
        at = self.steady.at(event.time)
        score = self.progress.report(trial, segment, event, at)
        if self.leaderboard.improved:
            self._effects.best[self.seq] = self.leaderboard.improved
        if event.checkpoint is not None:
            self._keep(trial, segment.ordinal, event.checkpoint)
        if event.last:
            segment.decide_at = None  # the training has ended, so the scheduler has nothing to decide
        if score is not None and segment.scored and not segment.leaving and math.isfinite(trial.t):
            reported = TrialReported(
                trial=trial.number,
                iteration=event.iteration,
                t=trial.t,
                score=score,
                metrics=event.metrics,
                time=at,
                running_s=self.running_s,
            )
            return [*facts, reported]
        if self.stopper is not None and trial.repeat_of is None and not segment.scored and not segment.leaving:
            self.stopper.record_report_without(trial, event.metrics, self.running_s)
        return facts

    def _apply_start(self, event: e.SegmentStarted) -> list[Fact]:
        trial = self.touch(event.trial)
        segment = trial.segments[-1]
        segment.placement, segment.startup_s, segment.warm = event.placement, event.startup_s, event.warm
        segment.held_s = event.held_s or None  # 0 in the logs of older versions
        held_since = self.steady.at(event.time) - event.held_s
        self.usage.begin(trial.number, held_since, segment.workers / self.spec.scaling.num_workers)
        self.sizes.started(event.held_s or event.startup_s)
        facts: list[Fact] = [] if segment.started else self._enter(trial, segment, event.time)
        return [*facts, StartMeasured(trial=trial.number, startup_s=event.startup_s)]

    def _enter(self, trial: Trial, segment: Segment, time: float) -> list[Fact]:
        at = self.steady.at(time)
        self.usage.begin(trial.number, at, trial.segments[-1].workers / self.spec.scaling.num_workers)
        if self.spec.executor != "agents":  # an agent may be cut off, and its ranks go on
            self.checkpoints.segment_started(trial)
        if not self.segments.enter(trial, segment, time, at):
            return []
        if trial.state is _S.PENDING:
            self.trials.move(trial.number, _S.RUNNING)
        return [TrialRestarted(trial=trial.number, cause=segment.cause, iteration=segment.start_iteration, t=trial.t)]

    def _apply_end(self, event: e.SegmentEnded) -> list[Fact]:
        trial = self.touch(event.trial)
        segment = trial.segments[-1]
        trial.failure = event.failure or trial.failure
        facts: list[Fact] = []
        if event.outcome == "returned" and not segment.started:
            facts = self._enter(trial, segment, event.time)
        self.warned_ends += bool(event.warning)
        self.unsaved_ends += trial.state.ended and event.failure is not None and event.failure.in_save
        if self.spec.scaling.elastic:
            self.sizes.ended(trial)
        retried = not (trial.state.ended or segment.leaving) and self._may_retry(trial, event.failure)
        self.segments.close(trial, SegmentState(event.outcome), event.time, event.uploading)
        self.usage.end(trial.number, self.steady.at(event.time))
        if event.failure is not None and event.failure.cause in ("checkpoint_lost", "disk_lost"):
            self._lose(segment, event.failure.cause == "disk_lost")
        elif event.failure is not None and event.failure.cause in _REMEDIES and not retried:
            self._pause_until_it_saves(event.failure.cause, event.failure.headline(event.trial))
        self._forget_values(trial)
        return facts

    def _may_retry(self, trial: Trial, failure: Failure | None) -> bool:
        """Return whether a trial that has failed has a retry left. Agents may say that a full disk is not their code's fault."""
        limits = self.spec.limits
        if failure is not None and failure.kind == "system":
            return trial.system_failures < limits.max_system_failures
        return trial.failures < limits.max_failures

    def _pause_until_it_saves(self, cause: str, what: str) -> None:
        """Begin to pause the experiment because checkpoints cannot be saved.

        Otherwise one trial after the other would fail, or lose its checkpoint.
        """
        if self.state is _X.RUNNING and self.finishing is None and (self.startable or not self.all_ended):
            why, remedy = _REMEDIES[cause]
            reason = f"paused, because {why}: {what}; {remedy}, then resume the experiment"
            self.unsavable = Unsavable(self.seq, why, reason)
            commands.pause_all(self)

    def _forget_values(self, trial: Trial) -> None:
        """Forget the objective of each report of an ended trial.

        These values are needed only to judge the trial's checkpoints. If they were kept, the driver's memory would grow
        with every report that was ever made.
        """
        if self.keeps_values or not trial.state.ended or trial.holds_resources:
            return
        if all(number != trial.number for number, _, _ in self.checkpoints.late.values()):
            trial.values = trial.times = _NOTHING
            trial.tags, trial.searcher_state = trial.tags or _NOTHING, trial.searcher_state or _NOTHING

    def _apply_takeover(self, event: e.DriverStarted) -> None:
        """Record that a new driver has taken over the experiment, and that the previous driver's segments are lost."""
        self.epoch, self.room = event.epoch, event.slots
        self.sizes.held, self.sizes.granted = event.workers, None
        if self.state is _X.PENDING:
            self.state = change_experiment(self.state, _X.RUNNING)
        uploaded = {info.id: info for info in event.uploaded}
        for number, ordinal, info in self.checkpoints.uploading() if uploaded else ():
            if info.id in uploaded:
                self._keep(self.touch(number), ordinal, uploaded[info.id])
        for trial in self.trials:
            if trial.holds_resources:
                self.segments.close(self.touch(trial.number), SegmentState.LOST, event.time)
                self.usage.end(trial.number, self.ran_before)  # the trial's ranks died with their driver
        self.lost_uploads = self.checkpoints.lose_uploads(died=self.spec.executor != "agents")
        self.checkpoints.decide_again()

    def _end_leaving(self) -> None:
        """Interrupt again the segments that a verdict is already ending, such as one that saves its last checkpoint."""
        for number in self.segments.holding:
            trial = self.trials[number]
            if trial.segments[-1].leaving:
                self.act(Interrupt(trial.ref, "stop"))

    def may_yield(self, trial: Trial) -> bool:
        """Return whether the trial can be paused for another experiment, or because its node is about to be taken away.

        It must be running, and must either save a checkpoint at every report or have saved one to continue from. A checkpoint
        that it took over from another trial does not count: it would lose all that it has trained since.
        """
        segment = trial.segment
        if segment is None or self.state is not _X.RUNNING or self.finishing is not None:
            return False
        free = segment.state is SegmentState.RUNNING and segment.commanded is None and trial.next is None
        saves = segment.offers and segment.offer == segment.report_no + 1
        start, inherited = trial.checkpoint, trial.inherited
        saved = start is not None and (inherited is None or start.id != inherited.id)
        return free and segment.report_no > 0 and (saved or saves)

    def _apply_decision(self, seq: int, decision: Decision) -> list[Fact]:
        """Apply a decision. Return the facts about which the scheduler may have to decide."""
        if self.waiting_exploits and isinstance(
            decision, d.Resume | d.Exploit | d.Stop | d.Complete | d.Fail | d.Cancel
        ):
            self.waiting_exploits.pop(decision.trial, None)
        match decision:
            case d.Start():
                return self._start(decision, seq)
            case d.Stop(trial=number):
                trial = self.trials[number]
                self.usage.stop(trial.running_s, trial.t, self.spec.max_t)
                return self._end(number, _S.STOPPED, decision.reason)
            case d.Complete(trial=number):
                return self._end(number, _S.COMPLETED, decision.reason)
            case d.Fail(trial=number):
                self.trials[number].failure = decision.failure or self.trials[number].failure
                return self._end(number, _S.FAILED, decision.reason)
            case d.Cancel(trial=number):
                return self._end(number, _S.CANCELLED, decision.reason)
            case d.Resume(trial=number):
                self.started_over += self.starts_over(self.trials[number])
                trial = self._continued(number, decision.reason)
                self._interrupt(self.segments.plan(trial, "resume", seq))
            case d.Retry(trial=number):
                trial = self._continued(number, decision.reason)
                self._count_failure(trial)
                if trial.segments and trial.segments[-1].state is SegmentState.FAILED:
                    self.saving.failed(self.ran)
                self._interrupt(self.segments.plan(trial, "retry", seq))
            case d.Exploit(trial=number):
                trial = self._continued(number, decision.reason)
                kept = self.checkpoints.find(decision.checkpoint)
                source = kept.info if kept is not None else self.trials[decision.donor].checkpoint
                trial.params = dict(decision.params)
                trial.space_revision = self._revision(decision)
                self.checkpoints.inherit(trial, len(trial.segments) + 1, source, decision.goes_back)
                self._interrupt(self.segments.plan(trial, "exploit", seq, source))
            case d.Resize(trial=number):
                trial = self._continued(number, decision.reason)
                self._interrupt(self.segments.plan(trial, "resize", seq, workers=decision.workers))
            case d.Pause():
                self._pause(decision)
            case d.Finish():
                self.finishing, self.failing, self.fatal = decision.reason, decision.failed, decision.fatal
            case d.Note():
                pass
            case _:
                assert_never(decision)
        return []

    def _start(self, decision: d.Start, seq: int) -> list[Fact]:
        trial = Trial(number=decision.number, params=dict(decision.params or {}), created_at=self.now)
        trial.tags, trial.searcher_state = dict(decision.tags), dict(decision.state)
        trial.space_revision = self._revision(decision)
        trial.reason, trial.repeat_of = decision.reason, decision.repeat_of
        self.trials.add(trial)
        if trial.repeat_of is not None:
            self.repeats.started(trial)
            self.leaderboard.tells_best = True  # the reports of repeats must not count as those of the search
        self.touch(trial.number)
        kept = self.checkpoints.find(decision.checkpoint)
        if kept is not None:
            self.checkpoints.inherit(trial, 1, kept.info)
            self._interrupt(self.segments.plan(trial, "fork", seq, kept.info, decision.workers))
        else:
            self._interrupt(self.segments.plan(trial, "start", seq, workers=decision.workers))
        if decision.late:
            self.late.add(trial.number)
        if decision.asked:
            self.checkpoints.add_requests(self.queue.popleft().checkpoint, -1)
        return [TrialStarted(trial=trial.number)]

    def _revision(self, decision: d.Start | d.Exploit) -> int:
        """Return the revision of the search space to which a decision's params belong."""
        return self.revisions.newest if decision.space_revision is None else decision.space_revision

    def starts_over(self, trial: Trial) -> bool:
        """Return whether a paused trial has trained, but has no checkpoint to continue from."""
        late = self.checkpoints.awaits(trial) is not None
        return trial.checkpoint is None and not late and bool(trial.iteration)

    def _continued(self, number: int, reason: str) -> Trial:
        trial = self.touch(number)
        trial.held, trial.reason = False, reason
        return trial

    def _pause(self, decision: d.Pause) -> None:
        trial = self.touch(decision.trial)
        if decision.then is not None:
            self.waiting_exploits[trial.number] = d.Exploit(**decision.then)
        trial.held, trial.reason = decision.held, decision.reason
        if trial.state is not _S.PAUSED or not decision.held:
            trial.paused_by_scheduler = not decision.held
        self._interrupt(self.segments.leave(trial, "pause"))
        if trial.state is not _S.PAUSED:
            self.trials.move(trial.number, _S.PAUSED)

    def _end(self, number: int, state: TrialState, reason: str) -> list[Fact]:
        trial = self.touch(number)
        trial.reason, trial.ended_at = reason, self.now
        trial.held, trial.waiting = False, ""
        self.segments.drop_plan(trial)
        if state is _S.FAILED:
            self._count_failure(trial)
        self._interrupt(self.segments.leave(trial, "stop"))
        self.trials.move(number, state)
        if state is _S.COMPLETED and trial.repeat_of is None:
            self.leaderboard.completed(trial)
        if (best := self.repeats.best) is not None:
            self.checkpoints.set_expected_best(best.number)
        self.checkpoints.trial_ended(trial)
        self._forget_values(trial)
        return [TrialEnded(trial=number, state=state, diverged=trial.diverged)]

    @staticmethod
    def _count_failure(trial: Trial) -> None:
        """Count a failure of the user's code or of the system, if the trial's newest segment failed."""
        if trial.failure is None or trial.segment is None or trial.segment.state is not SegmentState.FAILED:
            return
        if trial.failure.kind == "user":
            trial.failures += 1
        else:
            trial.system_failures += 1

    # -- effects of every change -----------------------------------------------------------------------------------------

    def _open_ready(self) -> None:
        if self.state is _X.RUNNING:
            elastic = self.workers if self.spec.scaling.elastic else None
            for action in self.segments.open_next(self.slots, self.now, elastic):
                trial = self.touch(action.segment.trial)
                self.act(action)
                asked = any(before.commanded == "pause" for before in trial.segments[-2:-1])
                # Its segment had ended before it could be paused.
                if asked and trial.segments[-1].cause in ("exploit", "retry", "resize"):
                    commands.want_pause(self, trial)
            for number in self.segments.awaiting:
                self._say_what_it_awaits(self.trials[number])

    def _say_what_it_awaits(self, trial: Trial) -> None:
        if (info := self.checkpoints.awaits(trial)) is not None:
            waiting = f"waits until its checkpoint of iteration {info.step} is uploaded"
            if trial.waiting != waiting:
                self.touch(trial.number).waiting = waiting

    def _keep(self, trial: Trial, segment: int, info: CheckpointInfo) -> None:
        """Add a checkpoint of a segment, with the objective of its report unless a later segment repeated that iteration."""
        newest = trial.segments[-1]
        if info.id not in trial.checkpoints:  # an upload that has ended names the same checkpoint again
            self.saving.saved(info.took_s, self.ran)
        reported = (s.ordinal for s in reversed(trial.segments) if s.start_iteration < info.step <= s.iteration)
        known = next(reported, None) == segment
        value = trial.values.get(info.step) if known else None
        t = trial.times.get(info.step) if known else None
        self.checkpoints.keep(trial, segment, info, value, t)
        if newest.ordinal == segment:
            newest.saved_at = self.ran

    def _lose(self, segment: Segment, disk: bool) -> None:
        """Drop the checkpoint from which a segment was to start; if `disk`, all checkpoints on the same node's disk."""
        source = segment.source
        if source is not None:
            self.checkpoints.lose([source.id, *(self.checkpoints.on_node(source.node) if disk else ())])

    def touch(self, number: int) -> Trial:
        """Return a trial that is about to change, whose row has to be written again. Only the modules of the state call this."""
        self._effects.touched[number] = None
        self.repeats.changed(number)
        return self.trials[number]

    def _interrupt(self, action: Interrupt | None) -> None:
        if action is not None:
            self.act(action)

    def act(self, action: Action) -> None:
        """Add an action to carry out after the commit. Only the modules of the state call this."""
        self._effects.actions.append(action)
