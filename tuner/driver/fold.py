"""The state of one experiment and the only two functions that change it: `_record` for events, `_enact` for decisions.

Live, `Core` (in `tuner.driver.core`) logs what it takes in and then has it take effect here; after a restart `fold` takes the
committed entries in their order. Both leave the same state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Entry
from tuner.domain.decisions import Decision
from tuner.domain.events import Event
from tuner.domain.experiment import Spec
from tuner.domain.states import ExperimentState, TrialState, change_experiment
from tuner.domain.trial import Cause, Mark, Population, Segment, Trial
from tuner.driver.actions import Action, DeleteCheckpoint, Interrupt, Launch
from tuner.driver.checkpoints import CheckpointLedger
from tuner.driver.standing import Standing
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

_S, _X = TrialState, ExperimentState


@dataclass(slots=True)
class Outcome:
    """What taking an event in leaves to be committed (`log`, `touched`) and, after that, to be done (`actions`)."""

    log: list[Entry] = field(default_factory=list)
    touched: dict[int, None] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)

    def absorb(self, other: Outcome) -> None:
        self.log += other.log
        self.touched |= other.touched
        self.actions += other.actions


class Fold:
    """One experiment. The only writer of its trials, in memory as in the log."""

    def __init__(
        self,
        spec: Spec,
        scheduler: Scheduler,
        searcher: Searcher,
        stopper: Stopper | None = None,
    ) -> None:
        self.spec = spec
        self.scheduler = scheduler
        self.searcher = searcher
        self.stopper = stopper
        self.trials = Population()
        self.state = _X.PENDING
        self.epoch = 0
        self.seq = 0
        self.now = 0.0  # time of the newest event
        self.running_s = (
            0.0  # time for which the experiment was running, under any driver, since its first trial started
        )
        self._begun = False  # whether a trial has ever started
        self.error: str | None = None
        self.finishing: str | None = None  # why nothing new is started
        self.standing = Standing(spec, searcher.metric_constraints())
        self._objective = spec.objective
        self._by_iteration = spec.time_attr == "training_iteration"
        self._by_metric = spec.time_attr not in ("training_iteration", "time_total_s")
        self.checkpoints = CheckpointLedger(self.trials, spec.checkpoint, spec.objective)
        self._failing = False
        self._open = 0  # segments that hold a worker group
        self._slots: int | None = None
        self._ready: deque[int] = deque()  # trials whose next segment waits for a slot
        self._waits_for: dict[int, d.Exploit] = {}  # trial -> exploit that waits for the donor's checkpoint
        self._decided: dict[int, int] = {}  # trial -> event_seq of the decision that its next launch carries out
        self._exhausted = False  # the searcher has nothing more to propose
        self._unseen = (
            stopper.metrics() if stopper is not None else frozenset()
        )  # what it looks at, not reported so far
        self._warned_ends = 0  # segments that ended with a warning
        self._missed: tuple[str, ...] = ()  # those of them that a report has lacked, in the order of the notes about it
        self._out = Outcome()

    def fold(self, seq: int, entry: Event | Decision) -> None:
        """Take in what was committed before; decide nothing and do nothing."""
        self._out = Outcome()
        self.seq = max(self.seq, seq)
        if isinstance(entry, Event):
            self._tick(entry)
            self._record(entry)
        else:
            if isinstance(entry, d.Start | d.Resume | d.Retry | d.Exploit):
                self._decided[entry.number if isinstance(entry, d.Start) else entry.trial] = seq
            self._enact(entry)

    @property
    def slots(self) -> int:
        return self.spec.limits.max_concurrent_trials or self._slots or 1

    @property
    def ended(self) -> bool:
        return self.state.ended

    @property
    def counts_time(self) -> bool:
        """Whether time counts against the time budget: the experiment runs, and its first trial has started."""
        return self._begun and self.state in (_X.RUNNING, _X.PAUSING)

    def _tick(self, event: Event) -> None:
        if not isinstance(event, e.DriverStarted) and self.counts_time:
            self.running_s += max(0.0, event.time - self.now)
        self._begun = self._begun or isinstance(event, e.SegmentStarted | e.Reported)
        self.now = max(self.now, event.time)

    def _record(self, event: Event) -> list[Fact]:
        """Fold an event into the trials; return what the scheduler has to be asked about."""
        facts: list[Fact] = []
        match event:
            case e.Reported():
                facts = self._record_report(event)
            case e.DriverStarted():
                self.epoch, self._slots = event.epoch, event.slots
                if self.state is _X.PENDING:
                    self.state = change_experiment(self.state, _X.RUNNING)
                for trial in self.trials:
                    if trial.holds_resources:
                        self._close(trial, "lost", event.time)
                for number, info in self.checkpoints.deleting.values():  # the driver before may not have got to them
                    self._act(DeleteCheckpoint(number, info))
            case e.Waiting():
                self._touch(event.trial).waiting = event.reason
            case e.SegmentStarted():
                facts = self._record_start(event)
            case e.StopJudged():
                functions = self.stopper.functions() if self.stopper is not None else []
                for stopper, answer in zip(functions, event.answers, strict=False):
                    stopper.answered(event.trial, event.segment, event.iteration, answer)
            case e.CheckpointSaved():
                self._keep(self._touch(event.trial), event.segment, event.checkpoint)
            case e.CheckpointDeleted():
                self.checkpoints.deleted(self._touch(event.trial), event.checkpoint)
            case e.SegmentEnded():
                trial = self._touch(event.trial)
                trial.failure = event.failure or trial.failure
                if event.outcome == "returned" and not trial.segments[-1].running:
                    facts = self._enter(trial, trial.segments[-1], event.time)
                self._warned_ends += bool(event.warning)
                self._close(trial, event.outcome, event.time)
                if event.failure is not None and event.failure.cause in ("checkpoint_lost", "disk_lost"):
                    self._lose(trial, event.failure.cause == "disk_lost")
            case e.Commanded():
                self._record_command(event)
            case e.BudgetSpent():
                self.finishing = f"the time budget of {event.seconds:g} s is spent"
            case e.ModelFitted():
                facts = [Fitted(payload=event.payload)] if event.payload else []  # empty: the fit failed
            case e.Suggested():
                self._exhausted = self._exhausted or event.params is None
            case e.Drawn():
                trial = self._touch(event.trial)
                trial.params = trial.segments[-1].params = {**trial.params, event.name: event.value}
                trial.searcher_state = {**trial.searcher_state, **event.state}
            case e.Noted():
                trial = self._touch(event.trial)
                trial.tags = {**trial.tags, "notes": {**trial.tags.get("notes", {}), **event.notes}}
        for fact in facts:
            self.scheduler.record(fact, self.trials)
            if self.stopper is not None:
                self.stopper.record(fact, self.trials)
        self._open_ready()
        self._settle()
        self._delete_decided()
        return facts

    def _record_report(self, event: e.Reported) -> list[Fact]:
        trial = self._touch(event.trial)
        segment = trial.segments[-1]
        # The word of the start comes by another way, and may be later than the first report.
        facts: list[Fact] = [] if segment.running else self._enter(trial, segment, event.time)
        segment.report_no, segment.iteration = event.report_no, event.iteration
        trial.running_s += max(0.0, event.time - segment.clock)
        segment.clock = event.time
        trial.iteration = event.iteration
        trial.reports += 1
        metrics = event.metrics
        if self._unseen:
            self._unseen -= metrics.keys()
            self._missed += tuple(sorted(self._unseen.difference(self._missed)))
        segment.scored = all(objective.metric in metrics for objective in self.spec.objectives)
        trial.last = {**trial.last, **metrics}
        trial.t = self._time_of(trial, metrics)
        value = metrics.get(self._objective.metric)
        trial.diverged = value is not None and not math.isfinite(value)
        usable = value is not None and not trial.diverged
        if usable:
            assert value is not None
            trial.last_value = value
            score = self._objective.score(value)
            if trial.best_value is None or score > self._objective.score(trial.best_value):
                trial.best_value, trial.best_iteration, trial.best_segment = value, event.iteration, event.segment
            trial.last_mark = Mark(value, event.iteration, event.segment)
        self.standing.reported(trial, metrics)
        if self.standing.best is not None:
            self.checkpoints.leads(self.standing.best[1])
        counts = usable and trial.feasible_now is not False
        if counts and value is not None:
            trial.values[event.iteration] = value
        else:
            trial.values.pop(event.iteration, None)
        t = trial.t if self._by_metric and math.isfinite(trial.t) else None
        if t is not None:
            trial.times[event.iteration] = t
        self.checkpoints.reported(trial, segment.ordinal, event.iteration, value if counts else None, t)
        if event.checkpoint is not None:
            self._keep(trial, segment.ordinal, event.checkpoint)
        if not usable or not segment.scored or segment.leaving or not math.isfinite(trial.t):
            known = all(objective.metric in trial.last for objective in self.spec.objectives)
            if self.stopper is not None and known and not segment.scored and not segment.leaving:
                self.stopper.record_without(trial)
            return facts
        return [
            *facts,
            TrialReported(
                trial=trial.number, iteration=event.iteration, t=trial.t, score=score, metrics=metrics, time=event.time
            ),
        ]

    def _record_start(self, event: e.SegmentStarted) -> list[Fact]:
        trial = self._touch(event.trial)
        segment = trial.segments[-1]
        segment.placement, segment.startup_s, segment.warm = event.placement, event.startup_s, event.warm
        facts: list[Fact] = [] if segment.running else self._enter(trial, segment, event.time)
        return [*facts, StartMeasured(trial=trial.number, startup_s=event.startup_s)]

    def _enter(self, trial: Trial, segment: Segment, time: float) -> list[Fact]:
        """The ranks are in the training function: told by `SegmentStarted`, or by the first report if that is earlier."""
        segment.running = True
        segment.started_at = segment.clock = segment.saved_at = time
        trial.waiting = ""
        trial.started_at = time if trial.started_at is None else trial.started_at
        if segment.leaving:
            return []
        if trial.state is _S.PENDING:
            self.trials.move(trial.number, _S.RUNNING)
        return [TrialRestarted(trial=trial.number, cause=segment.cause, iteration=segment.start_iteration, t=trial.t)]

    def _record_command(self, event: e.Commanded) -> None:
        if event.trial is not None:
            if event.command == "pause" and event.trial in self.trials and self.trials[event.trial].holds_resources:
                self.trials[event.trial].segments[-1].commanded = "pause"
            return
        match event.command:
            case "pause" if self.state is _X.RUNNING:
                self.state = change_experiment(self.state, _X.PAUSING)
                for trial in self.trials:
                    if trial.holds_resources and not trial.segments[-1].leaving:
                        trial.segments[-1].commanded = "pause"
            case "resume" if self.state in (_X.PAUSED, _X.PAUSING):
                self.state = change_experiment(self.state, _X.RUNNING)
                for trial in self.trials:
                    if trial.segments:
                        trial.segments[-1].commanded = None
            case "cancel" if self.state is not _X.CANCELLING and not self.ended:
                pending = self.state is _X.PENDING
                self.state = change_experiment(self.state, _X.CANCELLED if pending else _X.CANCELLING)
                self.finishing = event.reason or "cancelled by a user"

    def _enact(self, decision: Decision) -> list[Fact]:
        """Let a logged decision take effect on the trials; return the facts that follow from it."""
        facts: list[Fact] = []
        if isinstance(decision, d.Resume | d.Exploit | d.Stop | d.Complete | d.Fail | d.Cancel):
            self._waits_for.pop(decision.trial, None)
        match decision:
            case d.Start():
                trial = Trial(number=decision.number, params=dict(decision.params or {}), created_at=self.now)
                trial.tags, trial.searcher_state = dict(decision.tags), dict(decision.state)
                trial.reason = decision.reason
                self.trials.add(trial)
                self._touch(trial.number)
                self._plan(trial, "start")
                facts.append(TrialStarted(trial=trial.number))
            case d.Resume(trial=number) | d.Retry(trial=number):
                trial = self._touch(number)
                trial.held, trial.reason = False, decision.reason
                if isinstance(decision, d.Retry) and trial.failure is not None and trial.segment is not None:
                    self._count_failure(trial)
                self._plan(trial, "resume" if isinstance(decision, d.Resume) else "retry")
            case d.Pause(trial=number, held=held):
                trial = self._touch(number)
                if decision.then is not None:
                    self._waits_for[number] = d.Exploit(**decision.then)
                trial.held, trial.reason = held, decision.reason
                if trial.state is not _S.PAUSED or not held:
                    trial.paused_by_scheduler = not held
                self._leave(trial, "pause")
                if trial.state is not _S.PAUSED:
                    self.trials.move(number, _S.PAUSED)
            case d.Exploit():
                self._enact_exploit(decision)
            case d.Stop(trial=number):
                facts += self._end(number, _S.STOPPED, decision.reason)
            case d.Complete(trial=number):
                facts += self._end(number, _S.COMPLETED, decision.reason)
            case d.Fail(trial=number, failure=failure):
                self.trials[number].failure = failure or self.trials[number].failure
                facts += self._end(number, _S.FAILED, decision.reason)
            case d.Cancel(trial=number):
                facts += self._end(number, _S.CANCELLED, decision.reason)
            case d.Finish():
                self.finishing, self._failing = decision.reason, decision.failed
            case d.Note():
                pass
        for fact in facts:
            self.scheduler.record(fact, self.trials)
            if self.stopper is not None:
                self.stopper.record(fact, self.trials)
        self.scheduler.enacted(decision, self.trials)
        self._open_ready()
        self._settle()
        self._delete_decided()
        return facts

    def _enact_exploit(self, decision: d.Exploit) -> None:
        trial, donor = self._touch(decision.trial), self.trials[decision.donor]
        kept = self.checkpoints.find(decision.checkpoint)
        source = kept.info if kept is not None else donor.checkpoint
        trial.params = dict(decision.params)
        trial.held, trial.reason = False, decision.reason
        self.checkpoints.inherit(trial, len(trial.segments) + 1, source)
        self._plan(trial, "exploit", source)

    def _count_failure(self, trial: Trial) -> None:
        assert trial.failure is not None
        if trial.segments[-1].outcome == "failed":
            if trial.failure.kind == "user":
                trial.failures += 1
            else:
                trial.system_failures += 1

    def _end(self, number: int, state: TrialState, reason: str) -> list[Fact]:
        trial = self._touch(number)
        trial.reason = reason
        trial.next, trial.held, trial.waiting = None, False, ""
        trial.ended_at = self.now
        if state is _S.FAILED and trial.segments and trial.segments[-1].outcome == "failed":
            self._count_failure(trial)
        self._leave(trial, "stop")
        self.trials.move(number, state)
        if state is _S.COMPLETED:
            self.standing.completed(trial)
        self.checkpoints.trial_ended(trial)
        return [TrialEnded(trial=number, state=state, diverged=trial.diverged)]

    def _leave(self, trial: Trial, how: str) -> None:
        """The open segment, if there is one, is to end. Ranks that wait for a verdict get it; others are interrupted."""
        segment = trial.segment
        if segment is None or not segment.open:
            return
        if segment.leaving is not None:
            segment.leaving = "stop" if how == "stop" else segment.leaving
            return
        segment.leaving = how
        waits = segment.milestone is not None and segment.report_no >= segment.milestone
        if not waits:
            self._act(Interrupt(trial.number, segment.ordinal, how))

    def _plan(self, trial: Trial, cause: Cause, source: e.CheckpointInfo | None = None) -> None:
        """Plan the trial's next segment; it opens when the present one has ended and a slot is free.

        source: the donor's checkpoint, for an exploit. Others start from the newest usable one of the moment they open.
        """
        trial.next = Segment(len(trial.segments) + 1, cause, trial.params, source.step if source else 0, source)
        self.checkpoints.note_active(trial)
        if trial.state is _S.PAUSED or not trial.holds_resources:
            self._wait(trial)
        if trial.holds_resources:
            self._leave(trial, "exploit")
        else:
            self._ready.append(trial.number)

    def _wait(self, trial: Trial) -> None:
        """The trial waits for its next segment."""
        if trial.state is not _S.PENDING:
            self.trials.move(trial.number, _S.PENDING)

    def _open_ready(self) -> None:
        while self._ready and self._open < self.slots and self.state is _X.RUNNING:
            trial = self.trials[self._ready.popleft()]
            segment = trial.next
            if segment is None:
                continue
            segment.opened_at = segment.clock = self.now
            if segment.source is None or not self.checkpoints.exists(segment.source.id):
                segment.source = trial.checkpoint
            segment.start_iteration = segment.iteration = segment.source.step if segment.source else 0
            trial.next = None
            trial.segments.append(segment)
            trial.iteration = segment.start_iteration
            trial.t = self._time_at(trial, segment.source)
            self.checkpoints.note_active(trial)
            self._open += 1
            self._touch(trial.number)
            self._act(Launch(trial.number, segment.ordinal, self._decided.pop(trial.number, 0)))

    def _close(self, trial: Trial, outcome: str, time: float) -> None:
        segment = self._touch(trial.number).segments[-1]
        segment.open, segment.outcome, segment.ended_at = False, outcome, time
        self.checkpoints.segment_ended(trial, segment)
        trial.waiting = ""
        self._open -= 1
        if trial.next is not None:
            self._wait(trial)
            self._ready.append(trial.number)

    def _settle(self) -> None:
        """Changes of the experiment's state that follow from the rest."""
        if self._open:
            return
        match self.state:
            case _X.PAUSING if self.finishing is None or not self._all_ended:
                self.state = change_experiment(self.state, _X.PAUSED)
            case _X.CANCELLING if self._all_ended:
                self.state = change_experiment(self.state, _X.CANCELLED)
            case _X.RUNNING | _X.PAUSING if self.finishing is not None and self._all_ended:
                lost = self.trials.count(_S.FAILED)
                failed = self._failing or (lost > 0 and (not self.standing.finite or lost == len(self.trials)))
                self.error = self._why_no_result(lost)
                self.state = change_experiment(self.state, _X.FAILED if failed else _X.COMPLETED)

    def best_trial(self) -> Trial | None:
        """By the best report, or by the last ones if the scope says so; None if none is finite and within the constraints."""
        return self.standing.best_trial(self.trials)

    @property
    def _all_ended(self) -> bool:
        return not any(self.trials.count(state) for state in (_S.PENDING, _S.RUNNING, _S.PAUSED))

    def _why_no_result(self, lost: int) -> str | None:
        """The experiment's error: which trials failed, and why there is no best one."""
        said = [self._failures(lost)] if lost else [self.finishing] if self._failing else []
        return "; ".join(filter(None, [*said, self.standing.why_none()])) or None

    def _failures(self, count: int) -> str:
        last = [t for t in self.trials if t.state is _S.FAILED][-1].reason
        if count == 1:
            return last
        if self._failing and self.finishing and last in self.finishing:  # it says already what all failed of
            return self.finishing
        return f"{count} of {len(self.trials)} trials failed; the last one: {last}"

    def _keep(self, trial: Trial, segment: int, info: e.CheckpointInfo) -> None:
        """Take a checkpoint in. The value that goes with it is known unless a later segment has reported that iteration too."""
        newest = trial.segments[-1]
        reported = (s.ordinal for s in reversed(trial.segments) if s.start_iteration < info.step <= s.iteration)
        known = next(reported, None) == segment
        value = trial.values.get(info.step) if known else None
        t = trial.times.get(info.step) if known else None
        self.checkpoints.keep(trial, segment, info, value, t)
        if newest.ordinal == segment:
            newest.saved_at = self.now

    def _lose(self, trial: Trial, disk: bool) -> None:
        """The checkpoint it was to start from is gone; with `disk` all others that lay on the disk of that node are too."""
        source = trial.segments[-1].source
        if source is not None:
            self.checkpoints.lose([source.id, *(self.checkpoints.on_node(source.node) if disk else ())])

    def _delete_decided(self) -> None:
        for number, info in self.checkpoints.take_decided():
            self._touch(number)
            self._act(DeleteCheckpoint(number, info))

    def _time_at(self, trial: Trial, source: e.CheckpointInfo | None) -> float:
        """Return the value of time_attr with which a segment from this checkpoint begins."""
        if self._by_iteration:
            return float(source.step) if source else 0.0
        if not self._by_metric:
            return trial.t
        kept = self.checkpoints.find(source.id) if source else None
        return 0.0 if source is None else kept.t if kept is not None and kept.t is not None else trial.t

    def _time_of(self, trial: Trial, metrics: Mapping[str, float]) -> float:
        """Where the trial stands at this report. One without the objective may lack the time attribute too."""
        match self.spec.time_attr:
            case "training_iteration":
                return float(trial.iteration)
            case "time_total_s":
                return trial.running_s
            case name:
                return float(metrics.get(name, math.nan if trial.segments[-1].scored else trial.t))

    def _touch(self, number: int) -> Trial:
        self._out.touched[number] = None
        return self.trials[number]

    def _act(self, action: Action) -> None:
        self._out.actions.append(action)
