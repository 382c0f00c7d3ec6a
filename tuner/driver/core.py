"""The pure core of a driver: events in, log entries and actions out. No clock, no I/O, no Ray.

There are two ways through it, and they leave the same state:

* live, `handle(event)` folds the event, asks the scheduler, folds what was decided, and returns the log entries to commit and
  the actions to carry out after the commit;
* after a restart, `fold(seq, entry)` takes the committed entries in their order, and decides nothing.

The state and what changes it is in `tuner.driver.fold`; here is what decides.
"""

from __future__ import annotations

import difflib
import logging
import math
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.decisions import Decision
from tuner.domain.events import Event, Failure
from tuner.domain.experiment import Spec
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import Segment, Trial
from tuner.driver.actions import Ask, Fit, Interrupt, Verdict
from tuner.driver.alike import all_failed_alike
from tuner.driver.fold import Fold, Outcome
from tuner.driver.milestones import next_milestone, save_is_due
from tuner.names import did_you_mean
from tuner.schedulers.base import Fact, Scheduler, TrialReported, can_resume
from tuner.schedulers.stoppers import Stopper
from tuner.search.base import Searcher

log = logging.getLogger(__name__)

GIVE_UP_AFTER = 10
"""The experiment fails when so many trials have failed and none has ever reported."""

FIT_AGAIN_S = 30.0
"""How long after a model fit that failed no other one is asked for."""

_S, _X = TrialState, ExperimentState


class Core(Fold):
    """One experiment, live: the state, and who decides about it. `notes` are the first entries of its log."""

    def __init__(
        self,
        spec: Spec,
        scheduler: Scheduler,
        searcher: Searcher,
        stopper: Stopper | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(spec, scheduler, searcher, stopper)
        self.notes = notes
        self._asked: d.Start | None = None  # what a heavy searcher is proposing a configuration for
        self._fitting = False
        self._fit_again = 0.0

    def handle(self, event: Event) -> Outcome:
        """Fold a new event and decide. An event that was seen before, or comes from a segment that is over, changes nothing."""
        out = self._out = Outcome()
        if self._stale(event):
            return out
        self._tick(event)
        self._log(event)
        missed = len(self._missed)
        facts = deque(self._record(event))
        if isinstance(event, e.Reported) and len(self._missed) > missed:
            self._take(d.Note(reason=self._missing(self._missed[missed:], event.metrics), warning=True))
        for decision in self._judge(event):
            facts.extend(self._take(decision))
        while facts:
            fact = facts.popleft()
            if self._asks_scheduler(fact):
                for decision in self._ask_scheduler(fact):
                    facts.extend(self._take(decision))
        for decision in self._of_waiting():
            self._take(decision)
        if isinstance(event, e.Reported) and event.waits:
            self._obey(self.trials[event.trial])
        if self.stopper is not None and self.finishing is None and (why := self.stopper.finished(self.trials)):
            for trial in [t for t in self.trials if not t.state.ended]:
                self._take(d.Stop(trial=trial.number, reason=why))
            self._take(d.Finish(reason=why))
        self._fill()
        return out

    @staticmethod
    def _missing(names: Sequence[str], reported: Iterable[str]) -> str:
        """About metrics that `stop` looks at and that nobody has reported yet: a slip of the pen, or they come later."""
        known = sorted(reported)
        meant = "".join(did_you_mean(name, known, "'") for name in names)
        what = f"stop looks at {_names(names)}, which is not among the reported metrics: {_names(known)}"
        return f"{what} (until it comes, it ends nothing){meant}"

    def _ask_scheduler(self, fact: Fact) -> Iterator[Decision]:
        """One after the other, each as far as it still applies when those before it have taken effect.

        The scheduler may be of the user's, or call a function that is: what it raises, it would raise for the next driver too.
        """
        try:
            decisions = tuple(self.scheduler.decide(fact, self.trials))
        except Exception as error:
            yield from self._give_up(error)
        else:
            yield from filter(self._still_applies, decisions)

    def _choose(self) -> Decision | None:
        try:
            return self.scheduler.choose(self.trials, self.may_start)
        except Exception as error:
            for decision in self._give_up(error):
                self._take(decision)
            return None

    def _give_up(self, error: Exception) -> list[Decision]:
        log.exception("the scheduler raised")
        origin = traceback.extract_tb(error.__traceback__)[-1]
        why = f"the scheduler raised {type(error).__name__}: {error} ({origin.name}, line {origin.lineno})"
        others = [t.number for t in self.trials if not t.state.ended]
        return [*(d.Stop(trial=number, reason=why) for number in others), d.Finish(reason=why, failed=True)]

    def _obey(self, trial: Trial) -> None:
        """Pause the trial if a user wants that and its report did not end it. Call this at reports where the ranks wait:
        a trial that reports on after its pause was decided would escape its scheduler and max_t.
        """
        segment = trial.segments[-1]
        if segment.commanded == "pause" and segment.open and not segment.leaving:
            reason = f"paused by a user at iteration {trial.iteration}"
            self._take(d.Pause(trial=trial.number, reason=reason, held=True))

    @property
    def may_start(self) -> bool:
        """Whether another new trial is allowed."""
        total = self.spec.num_samples if self.scheduler.PROPOSES else self.searcher.total()
        return self.finishing is None and not self._exhausted and (total is None or len(self.trials) < total)

    def verdict(self, number: int, ordinal: int, offer: int | None = None) -> Verdict:
        """What the ranks of this segment do now: a function of the state, so that asking twice gives the same answer.

        offer: the report_no of the next report that a checkpoint may be had at, as far as the ranks can tell.
        """
        trial = self.trials[number]
        segment = trial.segment
        if segment is None or segment.ordinal != ordinal or not segment.open:
            return Verdict("stop", reason="this segment is over")
        policy = self.spec.checkpoint
        match segment.leaving:
            case "pause":
                return Verdict("pause", save_checkpoint=True, reason=trial.reason)
            case "exploit":
                return Verdict("exploit", reason=trial.reason)
            case "stop":
                at_end = policy.at_end and trial.state is _S.COMPLETED
                return Verdict("stop", save_checkpoint=at_end, reason=trial.reason)
        asked = segment.scored and segment.decide_at is not None and trial.t >= segment.decide_at
        segment.milestone = self._next_milestone(trial, segment, offer)
        save = (asked and self.scheduler.SAVES_AT_MILESTONES) or save_is_due(self.spec, segment, self.now)
        save = save or (policy.keep_best != 0 and self._is_best_yet(trial))
        return Verdict("continue", next_milestone=segment.milestone, save_checkpoint=save)

    def _is_best_yet(self, trial: Trial) -> bool:
        """Whether the trial's newest report is the best of the whole experiment."""
        best, mark = self.standing.best, trial.best_mark
        return best is not None and best[1] == trial.number and mark is not None and mark.iteration == trial.iteration

    def first_milestone(self, number: int) -> int | None:
        """report_no of the first report of the newest segment that waits for a verdict."""
        trial = self.trials[number]
        segment = trial.segment
        if segment is None:
            return None
        segment.milestone = self._next_milestone(trial, segment)
        return segment.milestone

    def summary(self) -> dict[str, object]:
        """For the experiment's row: the best trial, counts by state, why it ended."""
        counts = {str(state): self.trials.count(state) for state in TrialState}
        return {
            "best": self.standing.summary(self.trials),
            "counts": counts,
            "reason": self.finishing or "",
            "error": self.error,
        }

    def _stale(self, event: Event) -> bool:
        if not isinstance(event, e.Waiting | e.SegmentStarted | e.Reported | e.SegmentEnded | e.Drawn | e.Noted):
            return False
        if event.trial not in self.trials:
            return True
        segment = self.trials[event.trial].segment
        if segment is None or segment.ordinal != event.segment or not segment.open:
            return True
        if isinstance(event, e.Reported) and event.report_no > segment.report_no + 1:
            log.warning(
                "trial %s, segment %s: report %s came after report %s and is not counted before those between them",
                event.trial,
                event.segment,
                event.report_no,
                segment.report_no,
            )
        return isinstance(event, e.Reported) and event.report_no != segment.report_no + 1

    def _judge(self, event: Event) -> Iterable[Decision]:
        match event:
            case e.Reported():
                return self._judge_report(event)
            case e.SegmentEnded():
                return [*self._warn_of(event), *self._judge_end(event)]
            case e.DriverStarted():
                return self._judge_restart(event)
            case e.Commanded():
                return self._judge_command(event)
            case e.BudgetSpent():
                return [
                    d.Stop(trial=t.number, reason=self.finishing or "") for t in list(self.trials) if not t.state.ended
                ]
            case e.CheckpointSaved():
                ready = self.trials[event.trial].checkpoint is not None
                return [x for x in self._waits_for.values() if ready and x.donor == event.trial]
            case e.Suggested():
                asked, self._asked = self._asked, None
                if event.params is None or not self.may_start or self.state is not _X.RUNNING:
                    return ()
                asked = asked or d.Start(reason="a worker group is free")
                why = f"{asked.reason}; {event.note}" if event.note else asked.reason
                return [replace(asked, reason=why, params=event.params, number=event.number, state=event.state)]
            case e.ModelFitted():
                self._fitting = False
                self._fit_again = self.now if event.payload else self.now + FIT_AGAIN_S
        return ()

    def _judge_report(self, event: e.Reported) -> Iterable[Decision]:
        trial = self.trials[event.trial]
        number, segment, spec = trial.number, trial.segments[-1], self.spec
        if segment.leaving:
            return ()
        if missing := [o.metric for o in spec.objectives if o.metric not in trial.last]:
            return self._without_objective(trial, missing, event)
        if trial.diverged:
            value = event.metrics[self._objective.metric]
            return [
                d.Stop(
                    trial=number, reason=f"stopped at iteration {trial.iteration}: {self._objective.metric} is {value}"
                )
            ]
        if spec.time_attr in event.metrics and not math.isfinite(trial.t):
            message = f"the time attribute {spec.time_attr!r} must be a finite number, and this report has {trial.t}"
            failure = Failure(kind="spec", cause="metric", message=message, rank=0)
            return [d.Fail(trial=number, reason=failure.headline(number), failure=failure)]
        if math.isnan(trial.t):
            return self._wrong_report(trial, "the time attribute", [spec.time_attr], event.metrics)
        if spec.max_t is not None and trial.t >= spec.max_t:
            return [d.Complete(trial=number, reason=f"reached max_t: {spec.time_attr} {trial.t:g} of {spec.max_t}")]
        return self._ask_stopper(self.stopper, trial) if self.stopper is not None else ()

    def _ask_stopper(self, stopper: Stopper, trial: Trial) -> list[Decision]:
        """It may be a function of the user's: what it raises now, it would raise for every trial and every driver."""
        try:
            reason = stopper.decide(trial.number, self.trials)
        except Exception as error:
            meant = did_you_mean(error.args[0], trial.last, "'") if isinstance(error, KeyError) and error.args else ""
            what = f"stop raised {type(error).__name__}: {error}, the metrics being {_names(sorted(trial.last))}{meant}"
            failure = Failure(kind="spec", cause="stop", message=what, traceback=traceback.format_exc())
            return self._all_fail(trial, failure, "every trial is judged by the same function")
        return [d.Complete(trial=trial.number, reason=reason)] if reason else []

    def _would_stop(self, trial: Trial) -> bool:
        """Whether the stopper ends the trial as it is; no where it looks at what has not been reported yet."""
        try:
            return self.stopper is not None and self.stopper.decide(trial.number, self.trials) is not None
        except Exception:
            return False

    def _without_objective(self, trial: Trial, missing: Sequence[str], event: e.Reported) -> list[Decision]:
        """It may come later, as the accuracy at the end of an epoch; not where it has most likely been misspelt."""
        end = self.spec.max_t is not None and trial.t >= self.spec.max_t
        if (
            end
            or self._would_stop(trial)
            or any(_resembles(name, other) for name in missing for other in event.metrics)
        ):
            return self._wrong_report(trial, "the objective", missing, event.metrics)
        if trial.reports > 1 or any(t.reports for t in self.trials if t is not trial):
            return []
        reported = f"the first report has {_names(sorted(event.metrics))}"
        return [d.Note(reason=f"the objective {_names(missing)} has not been reported yet: {reported}", warning=True)]

    def _wrong_report(
        self, trial: Trial, what: str, missing: Sequence[str], metrics: Mapping[str, float]
    ) -> list[Decision]:
        """Ends the trial; and the experiment, where nobody has ever reported this: no trial would get any further."""
        reported = sorted(metrics)
        meant = "".join(did_you_mean(name, reported, "'") for name in missing)
        message = f"{what} {_names(missing)} is not among the reported metrics: {_names(reported)}{meant}"
        failure = Failure(kind="spec", cause="metric", message=message, rank=0)
        if any(name in t.last for name in missing for t in self.trials):
            return [d.Fail(trial=trial.number, reason=failure.headline(trial.number), failure=failure)]
        return self._all_fail(trial, failure, "every trial runs the same function")

    def _warn_of(self, event: e.SegmentEnded) -> list[Decision]:
        """Every trial runs the same function, so that only the first warning is shown where the user looks."""
        if not event.warning:
            return []
        why = f"trial {event.trial}: {event.warning}"
        return [d.Note(reason=why, trial=event.trial, warning=self._warned_ends == 1)]

    def _judge_end(self, event: e.SegmentEnded) -> Iterable[Decision]:
        trial = self.trials[event.trial]
        segment = trial.segments[-1]
        moved_on = segment.ordinal != event.segment  # its next segment was planned, and has opened by now
        if trial.state.ended or moved_on or segment.leaving or trial.next is not None:
            return ()
        if event.outcome == "returned":
            if trial.reports and (never := [o.metric for o in self.spec.objectives if o.metric not in trial.last]):
                return self._wrong_report(trial, "the objective", never, trial.last)
            count = f"{trial.iteration} report{'s' if trial.iteration != 1 else ''}"  # those that a retry repeated count once
            if not segment.report_no:
                why = f"the function returned at once, as it went on from its own end: iteration {trial.iteration}"
                return [d.Complete(trial=trial.number, reason=why)]
            return [d.Complete(trial=trial.number, reason=f"the function returned after {count}")]
        if event.outcome == "left":
            if segment.commanded == "pause" or self.state is _X.PAUSING:
                return [d.Pause(trial=trial.number, reason="paused by a user before it reported", held=True)]
            return [d.Retry(trial=trial.number, reason="its worker group was taken back")]
        failure = event.failure or Failure(kind="system", message="the worker group was lost")
        if failure.kind == "placement":
            return self._all_fail(trial, failure, "every trial asks for the same workers")
        decision = self._after_failure(trial, failure)
        alike = all_failed_alike(self.trials, trial.number, failure) if isinstance(decision, d.Fail) else None
        return [decision] if alike is None else self._all_fail(trial, failure, alike)

    def _all_fail(self, trial: Trial, failure: Failure, since: str) -> list[Decision]:
        """This trial has failed of what all the others would fail of, one after the other."""
        why = failure.headline(trial.number)
        others = [t.number for t in self.trials if not t.state.ended and t is not trial]
        return [
            d.Fail(trial=trial.number, reason=why, failure=failure),
            *(d.Stop(trial=number, reason=f"{since}, and {why}") for number in others),
            d.Finish(reason=f"{since}, and {why}", failed=True),
        ]

    def _after_failure(self, trial: Trial, failure: Failure) -> Decision:
        limits = self.spec.limits
        what = failure.headline(trial.number)
        where = f"from iteration {trial.checkpoint.step}" if trial.checkpoint else "from the beginning"
        match failure.kind:
            case "user" if trial.failures < limits.max_failures:
                return d.Retry(
                    trial=trial.number,
                    reason=f"retry {trial.failures + 1} of {limits.max_failures}, {where}, after {what}",
                )
            case "system" if trial.system_failures < limits.max_system_failures:
                return d.Retry(trial=trial.number, reason=f"started again {where} after {what}")
        return d.Fail(trial=trial.number, reason=what)

    def _judge_restart(self, event: e.DriverStarted) -> list[Decision]:
        decisions: list[Decision] = [d.Note(reason=note) for note in self.notes] if self.seq == 1 else []
        for trial in self.trials:
            if trial.state not in (_S.PENDING, _S.RUNNING) or trial.next is not None or trial.holds_resources:
                continue
            if self.state in (_X.PAUSING, _X.PAUSED):
                decisions.append(
                    d.Pause(trial=trial.number, reason="paused by a user, the driver having gone", held=True)
                )
            else:
                where = f"from iteration {trial.checkpoint.step}" if trial.checkpoint else "from the beginning"
                decisions.append(d.Retry(trial=trial.number, reason=f"taken up again {where} by a new driver"))
        for exploit in self._waits_for.values():
            if self.trials[exploit.donor].checkpoint is not None:  # it came with the last event of the driver before
                decisions.append(exploit)
        return decisions

    def _judge_command(self, event: e.Commanded) -> list[Decision]:
        by = event.reason or "by a user"
        if event.trial is not None:
            if event.trial not in self.trials or self.trials[event.trial].state.ended:
                return []
            return self._judge_trial_command(event, self.trials[event.trial], by)
        match event.command:
            case "cancel":
                return [
                    d.Cancel(trial=t.number, reason=f"cancelled {by}") for t in list(self.trials) if not t.state.ended
                ]
            case "resume":
                return [
                    d.Pause(trial=t.number, reason=f"let go of {by}; its scheduler had paused it")
                    if t.paused_by_scheduler
                    else d.Resume(trial=t.number, reason=f"resumed {by}")
                    for t in list(self.trials)
                    if t.held and t.number not in self._waits_for
                ]
            case "pause":
                for trial in self.trials:
                    if trial.holds_resources and trial.segments[-1].commanded:
                        self._act(Interrupt(trial.number, trial.segments[-1].ordinal, "pause"))
        return []

    def _judge_trial_command(self, event: e.Commanded, trial: Trial, by: str) -> list[Decision]:
        match event.command:
            case "stop":
                return [d.Stop(trial=trial.number, reason=f"stopped {by} at iteration {trial.iteration}")]
            case "cancel":
                return [d.Cancel(trial=trial.number, reason=f"cancelled {by}")]
            case "resume" if trial.state is _S.PAUSED and trial.next is None:
                return [d.Resume(trial=trial.number, reason=f"resumed {by}")]
            case "pause" if trial.state is _S.PAUSED:
                return [d.Pause(trial=trial.number, reason=f"held {by}", held=True)]
            case "pause" if trial.holds_resources and not trial.segments[-1].leaving:
                self._act(Interrupt(trial.number, trial.segments[-1].ordinal, "pause"))
        return []

    def _asks_scheduler(self, fact: Fact) -> bool:
        """Reports are decided on at milestones only, and not once the trial is leaving; nothing is once all has failed."""
        if self._failing:
            return False
        if not isinstance(fact, TrialReported):
            return True
        segment = self.trials[fact.trial].segments[-1]
        if segment.leaving or segment.milestone is None or segment.report_no < segment.milestone:
            return False
        return segment.decide_at is not None and fact.t >= segment.decide_at

    def _still_applies(self, decision: Decision) -> bool:
        """A scheduler may decide on the trial that reported and on paused ones; anything else is its mistake."""
        if isinstance(decision, d.Start | d.Finish | d.Note):
            return True
        trial = self.trials[decision.trial]  # type: ignore[attr-defined]
        if trial.state.ended:
            return False
        if isinstance(decision, d.Exploit) and not self._can_exploit(decision):
            return False
        if isinstance(decision, d.Resume):
            return can_resume(trial)
        return trial.state is _S.PAUSED or not (trial.holds_resources and trial.segments[-1].leaving)

    def _of_waiting(self) -> list[Decision]:
        """Let those exploit whose donor's checkpoint has become usable, and those go on that wait for one in vain.

        A checkpoint may become usable with its report, after the news that it is ready. A donor that has none and does not run
        will not have one: paused, it may itself wait for the others to come to the end of an interval.
        """
        why = "trial {} has no checkpoint that this one could go on from, and none is on its way"
        found: list[Decision] = []
        for exploit in self._waits_for.values():
            donor = self.trials[exploit.donor]
            if donor.checkpoint is not None:
                found.append(exploit)
            elif not self._may_deliver(donor):
                found.append(d.Resume(trial=exploit.trial, reason=why.format(exploit.donor)))
        return found

    @staticmethod
    def _may_deliver(donor: Trial) -> bool:
        """Whether there is a checkpoint of the donor, or may yet come one."""
        return donor.checkpoint is not None or donor.holds_resources or donor.next is not None

    def _can_exploit(self, decision: d.Exploit) -> bool:
        if self.trials[decision.trial].state.ended or decision.donor not in self.trials:
            return False
        return self._may_deliver(self.trials[decision.donor])

    def _take(self, decision: Decision) -> list[Fact]:
        """A decision made just now: pin what it needs, log it, let it take effect."""
        if isinstance(decision, d.Exploit):
            decision = self._pin(decision)
        seq = self._log(decision)
        if isinstance(decision, d.Start | d.Resume | d.Retry | d.Exploit):
            self._decided[decision.number if isinstance(decision, d.Start) else decision.trial] = seq
        return self._enact(decision)

    def _pin(self, decision: d.Exploit) -> Decision:
        donor = self.trials[decision.donor].checkpoint
        if donor is not None and donor.ready:
            return replace(decision, checkpoint=donor.id)
        reason = f"waits for the checkpoint of trial {decision.donor}, which it is to go on from: {decision.reason}"
        return d.Pause(trial=decision.trial, reason=reason, held=True, then=decision.to_json())

    def _fill(self) -> None:
        """Give free slots to what the scheduler chooses; when nothing is left to do, finish."""
        if self.finishing is not None and self.state is _X.RUNNING:
            self._stop_paused(self.finishing)
        while self.state is _X.RUNNING and self.finishing is None and not self._ready and self._open < self.slots:
            if self._hopeless():
                self._finish(f"{GIVE_UP_AFTER} trials failed and none has ever reported", failed=True)
                return
            if (done := self.scheduler.finished(self.trials, self.may_start)) is not None:
                self._finish(done)
                return
            choice = self._choose()
            if self._failing or (self._asked is not None and isinstance(choice, d.Start)):
                break
            if isinstance(choice, d.Start) and not self.may_start:
                choice = None
            if isinstance(choice, d.Resume | d.Exploit) and not can_resume(self.trials[choice.trial]):
                choice = None
            if isinstance(choice, d.Start):
                choice = self._with_suggestion(choice)
                if choice is None:
                    if self._exhausted and self._asked is None:
                        continue
                    break
            if isinstance(choice, d.Exploit) and not self._can_exploit(choice):
                why = f"trial {choice.donor} has no checkpoint to go on from"
                choice = d.Resume(trial=choice.trial, reason=why)
            if choice is None:
                if not self._open and not self._fitting and not self._waits_for and self._asked is None:
                    count = len(self.trials)
                    self._finish(f"{'all' if count > 1 else 'the'} {count} trial{'s' if count != 1 else ''} ended")
                    return
                break
            if isinstance(choice, d.Resume):
                self._warn_of_starting_over(self.trials[choice.trial])
            self._take(choice)
        if not self._fitting and self.state is _X.RUNNING and self.finishing is None and self.now >= self._fit_again:
            payload = self.scheduler.fit_request(self.trials)
            if payload is not None:
                self._fitting = True
                self._act(Fit(payload))

    def _warn_of_starting_over(self, trial: Trial) -> None:
        """Of the first trial that a scheduler has paused and resumes, and that has no checkpoint to go on from."""
        if trial.checkpoint is not None or not trial.iteration:
            return
        for other in self.trials:
            planned = [other.next] if other.next is not None and other.checkpoint is None else []
            if any(s.cause == "resume" and not s.start_iteration for s in (*other.segments, *planned)):
                return
        count = f"{trial.iteration} report{'s' if trial.iteration != 1 else ''}"
        why = (
            f"trial {trial.number} starts over, {count} once more, as its function has saved no checkpoint: "
            "pass one to tuner.report, or take a scheduler that never resumes, such as asha"
        )
        self._take(d.Note(reason=why, trial=trial.number, warning=True))

    def _with_suggestion(self, choice: d.Start) -> d.Start | None:
        number = len(self.trials)
        if choice.params is not None:
            return replace(choice, number=number)
        if self.searcher.HEAVY:
            self._asked = choice
            self._act(Ask(number))
            return None
        suggestion = self.searcher.suggest(number, self.trials)
        if suggestion is None:
            self._exhausted = True
            return None
        reason = f"{choice.reason}; {suggestion.note}" if suggestion.note else choice.reason
        return replace(choice, number=number, params=suggestion.params, state=suggestion.state, reason=reason)

    def _finish(self, reason: str, failed: bool = False) -> None:
        if never := [name for name in self._missed if name in self._unseen]:
            reason += f"; no report had {_names(never)}, which stop looks at"
        self._stop_paused(reason)
        self._take(d.Finish(reason=reason, failed=failed))

    def _stop_paused(self, reason: str) -> None:
        for number in self.trials.in_state(_S.PAUSED):
            self._take(d.Stop(trial=number, reason=f"the search is over: {reason}"))

    def _hopeless(self) -> bool:
        return self.trials.count(_S.FAILED) >= GIVE_UP_AFTER and all(t.reports == 0 for t in self.trials)

    def _next_milestone(self, trial: Trial, segment: Segment, offer: int | None = None) -> int | None:
        undecided = not segment.scored and segment.decide_at is not None and trial.t >= segment.decide_at
        if not undecided:  # else the scheduler is asked at the next report that has the objective
            segment.decide_at = self.scheduler.milestone(trial, self.trials)
        stop_at = self.stopper.milestone(trial) if self.stopper is not None else None
        end = None if self.spec.max_t is None else float(self.spec.max_t)
        return next_milestone(self.spec, trial, segment, [segment.decide_at, stop_at, end], self.now, offer)

    def _log(self, entry: Event | Decision) -> int:
        self.seq += 1
        self._out.log.append((self.seq, entry))
        return self.seq


def _resembles(name: str, reported: str) -> bool:
    """Where "los" or "train_loss" came "loss" was meant; where "loss" came "val_loss" may well follow."""
    return name in reported or difflib.SequenceMatcher(None, name, reported).ratio() > 0.85


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"
