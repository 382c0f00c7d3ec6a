"""Make decisions with the rules, the scheduler, the searcher and the stopper. This module only reads the state.

The methods of `Decider` yield decisions one after the other. The core applies each decision before it takes the next one,
so every decision can depend on the earlier ones.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, assert_never

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.decisions import Decision
from tuner.domain.events import Event
from tuner.domain.keys import keyed_random
from tuner.domain.segments import CheckpointInfo, Leave, Verdict
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.trial import DRAWN_AS, Segment, Trial
from tuner.driver.core.actions import Ask, Fit, Question
from tuner.driver.core.milestones import next_milestone, save_is_due
from tuner.driver.core.rules import repeats
from tuner.driver.core.rules.commands import after_command, after_takeover, stop_all
from tuner.driver.core.rules.ends import after_end, unsavable
from tuner.driver.core.rules.reports import after_report, missed_metrics
from tuner.driver.core.rules.sizes import resized, waiting_resized
from tuner.driver.core.rules.words import names, paused, where_from
from tuner.driver.core.state import limits
from tuner.driver.core.state.enqueued import EnqueuedTrial
from tuner.driver.core.state.state import State
from tuner.errors import text_of
from tuner.names import did_you_mean
from tuner.plurals import counted
from tuner.schedulers.base import ALLOWED, HAS_ROOM, Fact, TrialReported, can_resume
from tuner.schedulers.stoppers import Stopper
from tuner.search.base import Searcher

log = logging.getLogger(__name__)

STARTS_OVER = "starts from the beginning"
"""The words in the reason of each resume without a checkpoint. The page finds these decisions by these words."""

FIT_AGAIN_S = 30.0
"""Seconds to wait after a failed model fit before a new fit is requested."""

_S, _X = TrialState, ExperimentState


class Judgement(NamedTuple):
    """A verdict that lets a segment continue, with two further arguments for `State.set_milestone`."""

    verdict: Verdict
    decide_at: float | None
    asked: bool


class Decider:
    """Makes the decisions about one experiment.

    It remembers the computations that it has requested from other processes, so that it requests none twice. They are not
    stored, because those processes end when the driver does.
    """

    def __init__(self, experiment: State, searcher: Searcher, notes: Sequence[str] = ()) -> None:
        self.experiment, self.searcher, self.notes = experiment, searcher, notes
        self.scheduler, self.stopper, self.trials = experiment.scheduler, experiment.stopper, experiment.trials
        self._asked: d.Start | None = None  # the start for which a heavy searcher is proposing a configuration
        self._outdated = False  # the space has changed since the searcher was asked, so it is asked again
        self._amended = False  # the spec has changed since the searcher was asked
        self._exhausted = False  # the searcher has no more configurations, or none until another trial has ended
        self._waits_since: int | None = None  # how many trials had ended when the searcher began to wait
        self._commands = 0  # users' requests from before the newest takeover that are not handled yet
        self._owes_takeover = False  # the trials of the previous driver are to be continued
        self._fitting = False
        self._fit_again = 0.0

    @property
    def may_start(self) -> bool:
        """Return whether the searcher may start one more trial. Trials that users have enqueued do not count."""
        experiment = self.experiment
        if experiment.finishing is not None or experiment.exhausted or self._exhausted:
            return False
        total = experiment.spec.num_samples if self.scheduler.PROPOSES else self.searcher.total()
        return total is None or len(self.trials.searched) + len(experiment.queue) < total + experiment.asked

    @property
    def _next_suggestion(self) -> int:
        """Return the number of the searcher's next suggestion. Repeats and trials that users enqueued do not count."""
        return len(self.trials.searched) - (self.experiment.asked - len(self.experiment.queue))

    @property
    def _ended(self) -> int:
        """Return the number of trials that have ended."""
        return sum(self.trials.count(state) for state in TrialState if state.ended)

    def expect(self, commands: Sequence[Event]) -> None:
        """Note the users' requests that follow a takeover at once, so that it starts no trial that they end, stop or pause."""
        of_trials = any(isinstance(event, e.Commanded) and event.trial is not None for event in commands)
        self._commands = 0 if of_trials else len(commands)  # a request about a trial is for its open segment

    # -- after an event --------------------------------------------------------------------------------------------------

    def dated(self, event: Event) -> Event:
        """Mark a proposal whose searcher was asked before the spec was changed: that it has no more says nothing then."""
        if not isinstance(event, e.Suggested) or not self._amended:
            return event
        self._amended = False
        return replace(event, outdated=True)

    def after_event(self, event: Event, missed: Sequence[str] = ()) -> Iterable[Decision]:
        """Return the decisions that the core itself makes about an event, without the scheduler.

        missed: the metrics that `stop` or constraints use and that were found missing for the first time in this event.
        """
        match event:
            case e.Reported():
                decisions = after_report(self.experiment, event)
                notes = [*missed_metrics(self.experiment, missed, event.metrics)] if missed else []
                if self.trials[event.trial].reports == 1:
                    notes += self._unused_values(self.trials[event.trial])
                return [*notes, *decisions] if notes else decisions
            case e.SegmentEnded():
                return after_end(self.experiment, event)
            case e.DriverStarted():
                notes = [d.Note(reason=event.executor)] if event.executor else []
                notes += [d.Note(reason=note) for note in self.notes] if self.experiment.seq == 1 else []
                for number, _, info in self.experiment.lost_uploads:
                    notes.append(self._lost(number, info, "the driver stopped before its upload was complete"))
                self._owes_takeover = True
                return [*notes, *self._take_over()]
            case e.Commanded():
                if event.command == "continue":
                    self._exhausted = False
                return self._obey(event)
            case e.Amended():
                self._exhausted = False
                self._amended = self._asked is not None
                self._outdated = self._asked is not None and "space" in event.changes
                why = event.reason or f"a user changed {names(event.changes)}"
                note = d.Note(reason=why + (self._trials_inside() if "space" in event.changes else ""))
                return [note, *self._resume_late()]
            case e.UploadFailed():
                return [
                    self._lost(event.trial, event.checkpoint, event.reason),
                    *unsavable(self.experiment, event.trial),
                ]
            case e.Enqueued() | e.Pinned():
                return ()
            case e.BudgetSpent() | e.GpuHoursSpent():
                return stop_all(self.experiment, limits.spent(event))
            case e.Suggested():
                return self._after_suggestion(event)
            case e.ModelFitted():
                self._fitting = False
                self._fit_again = self.experiment.ran if event.payload else self.experiment.ran + FIT_AGAIN_S
                return ()
            case (
                e.Waiting()
                | e.SegmentStarted()
                | e.StopJudged()
                | e.CheckpointSaved()
                | e.CheckpointDeleted()
                | e.Drawn()
                | e.Noted()
                | e.RoomWanted()
                | e.SlotsChanged()
                | e.ClockJumped()
            ):
                return ()
            case e.WorkersChanged():
                return waiting_resized(self.experiment)
            case _:
                assert_never(event)

    def _take_over(self) -> Iterator[Decision]:
        """Continue or pause the previous driver's trials once the users' requests are handled, unless a limit is used up."""
        decisions = after_takeover(self.experiment)
        if self._commands or (decisions and limits.end_search(self.experiment)):
            return
        self._owes_takeover = False
        yield from decisions

    def _obey(self, event: e.Commanded) -> Iterator[Decision]:
        """Make the decisions that follow a user's command. A resumed trial that has no checkpoint starts over, with a warning.

        If the time budget or the GPU hours are used up, as after a user has lowered them, a resume starts no trial: the
        driver's timer ends the search next.
        """
        if event is self.experiment.late_resume and not self.experiment.resumes_late:
            return
        for decision in after_command(self.experiment, event):
            if isinstance(decision, d.Resume):
                yield from self._continue_trial(decision, asked=True)
            else:
                yield decision

    def _resume_late(self) -> Iterator[Decision]:
        """Carry out a resume that started no trial, if a user has raised the limit before it has ended the search."""
        if (resume := self.experiment.late_resume) is not None and self.experiment.resumes_late:
            yield from self._obey(resume)

    def _lost(self, number: int, info: CheckpointInfo, reason: str) -> d.Note:
        """Warn of a checkpoint whose upload failed after its segment had ended, and say where the trial would continue."""
        trial = self.trials[number]
        waits = trial.state in (_S.PAUSED, _S.PENDING)
        left = f"; the trial would continue {where_from(self.experiment, trial)}" if waits else ""
        what = f"the checkpoint of trial {number} at iteration {info.step} is lost: {reason}{left}"
        return d.Note(reason=what, trial=number, warning=True)

    def _unused_values(self, trial: Trial) -> Iterator[d.Note]:
        """Warn of given values for which the training code has not asked by the trial's first report."""
        for where, name in self.searcher.not_asked_for(trial):
            what = f"trial {trial.number} made its first report without asking for {name!r}, which {where} gives"
            meant = did_you_mean(name, trial.params, "'")
            asked = f"the value has had no effect; the trial has asked for {names(trial.params)}{meant}"
            yield d.Note(reason=f"{what}: {asked}", trial=trial.number, warning=True)

    def _trials_inside(self) -> str:
        """Return a phrase that says how many of the trials so far lie in the new search space; "" if there are no trials."""
        inside = sum(self.searcher.context.params_of(trial) is not None for trial in self.trials)
        lie = "lies" if inside == 1 else "lie"
        return (
            f"; {inside} of {counted(len(self.trials), 'trial')} so far {lie} in the new space" if self.trials else ""
        )

    def _after_suggestion(self, event: e.Suggested) -> Iterator[Decision]:
        """Start a trial with the proposed configuration.

        If users have enqueued trials or the search space has changed in the meantime, discard the proposal; the searcher will
        propose another one.
        """
        (asked, self._asked), (outdated, self._outdated) = (self._asked, None), (self._outdated, False)
        if event.params is None or self.experiment.queue or outdated:
            return
        if self.may_start and self.experiment.state is _X.RUNNING:
            asked = asked or self._why_now(d.Start(reason=ALLOWED))
            why = f"{asked.reason}; {event.note}" if event.note else asked.reason
            yield replace(asked, reason=why, params=event.params, number=len(self.trials), state=event.state)

    # -- the scheduler ---------------------------------------------------------------------------------------------------

    def after_fact(self, fact: Fact) -> Iterable[Decision]:
        """Return the scheduler's decisions about a fact. A decision that no longer applies when it is taken is left out.

        The scheduler may be the user's own, or call a user's function. If it raises, the experiment fails, because
        the scheduler would raise again under the next driver.
        """
        if not self._concerns_scheduler(fact):
            return ()
        try:
            decisions = tuple(self.scheduler.decide(fact, self.trials.searched))
        except (Exception, SystemExit) as error:
            return self._give_up("scheduler", error)
        return filter(self._still_applies, decisions) if decisions else ()

    def _concerns_scheduler(self, fact: Fact) -> bool:
        """Return whether the scheduler decides about a fact.

        It does not decide about reports between milestones, or about reports of trials whose segment is already ending.
        """
        if self.experiment.failing:
            return False
        if not isinstance(fact, TrialReported):
            return True
        segment = self.trials[fact.trial].segments[-1]
        if segment.leaving or segment.milestone is None or segment.report_no < segment.milestone:
            return False
        return segment.decide_at is not None and fact.t >= segment.decide_at

    def _still_applies(self, decision: Decision) -> bool:
        """Return whether a decision of the scheduler can still be applied.

        It cannot if its trial has ended or the trial's segment is already ending. A resume also needs a paused trial that
        is not held, and an exploit needs a donor that has or will have a checkpoint.
        """
        if isinstance(decision, d.Start | d.Finish | d.Note):
            return True
        if isinstance(decision, d.Resize):  # only the core decides about the number of ranks
            return False
        trial = self.trials[decision.trial]
        if trial.state.ended:
            return False
        if isinstance(decision, d.Exploit) and not self._can_exploit(decision):
            return False
        if isinstance(decision, d.Resume):
            return can_resume(trial)
        return trial.state is _S.PAUSED or not (trial.holds_resources and trial.segments[-1].leaving)

    def _give_up(self, part: str, error: BaseException) -> Iterator[Decision]:
        log.error("the %s raised", part, exc_info=error)
        origin = traceback.extract_tb(error.__traceback__)[-1]
        why = f"the {part} raised {type(error).__name__}: {text_of(error)} ({origin.name}, line {origin.lineno})"
        yield from stop_all(self.experiment, why)
        yield d.Finish(reason=why, failed=True)

    # -- after every event -----------------------------------------------------------------------------------------------

    def next_steps(self, event: Event) -> Iterator[Decision | Question]:
        """Yield further decisions after an event, such as which trial to start in a free slot.

        Call this after `after_event`, and after `after_fact` for each fact that followed from the event.
        """
        if self._commands and isinstance(event, e.Commanded | e.Amended | e.Enqueued | e.Pinned):
            self._commands -= 1
        if self._owes_takeover:
            yield from self._take_over()
            if self._owes_takeover:
                return
        if self.experiment.waiting_exploits:
            yield from self._end_waiting()
        outlook = self.experiment.outlook
        if isinstance(event, e.Reported) and outlook.fresh and (said := outlook.in_words()) is not None:
            yield d.Note(reason=said)
        if self.experiment.saving.fresh:
            yield d.Note(reason=self.experiment.saving.in_words())
        waiting = self.trials[event.trial] if isinstance(event, e.Reported) and event.waits and not event.last else None
        if waiting is not None and waiting.segments[-1].commanded:
            yield from self._pause_if_wanted(waiting)
        if self.stopper is not None and self.experiment.finishing is None:
            yield from self._ask_stopper(self.stopper)
        if self.experiment.finishing is None and self.experiment.state is _X.RUNNING:
            yield from self._check_limits()
            yield from self._keep_time_for_repeats()
            for trial in repeats.needless(self.experiment):
                yield d.Stop(trial=trial.number, reason="stopped: results do not differ from run to run")
        if self._waits_since is not None and self._waits_since != self._ended:
            self._exhausted, self._waits_since = False, None
        if self.experiment.finishing is not None or self._has_free_slot():
            yield from self._use_slots()
        if self.experiment.spec.scaling.elastic and waiting is not None:
            yield from self._resize(waiting)
        for number in self.experiment.segments.went_back:
            yield self._went_back(number)
        if not self._fitting and (fit := self._fit_request()) is not None:
            yield fit

    def _went_back(self, number: int) -> d.Note:
        """Warn that an exploit was undone, so that the trial continues from its own older checkpoint."""
        step = self.trials[number].segments[-1].start_iteration
        why = (
            f"trial {number} continues from its own checkpoint of iteration {step}, with the configuration that it had then, "
            "because the checkpoint that it was to copy is lost"
        )
        return d.Note(reason=why, trial=number, warning=True)

    def _end_waiting(self) -> Iterable[Decision]:
        """Start each exploit whose donor now has a usable checkpoint. Resume each trial whose donor will not deliver one.

        A checkpoint may be ready before its report makes it usable. A donor that has no checkpoint and is not running
        will not deliver one. No trial may wait for such a donor, because the donor may itself be paused until the other
        trials reach the end of an interval.
        """
        why = "trial {} has no checkpoint that this trial could continue from, and is saving none"
        found: list[Decision] = []
        for exploit in self.experiment.waiting_exploits.values():
            donor = self.trials[exploit.donor]
            if (exploit.space_revision or 0) != self.experiment.revisions.newest:
                changed = (
                    "the search space was changed while the trial waited for a checkpoint, so it continues unchanged"
                )
                found.append(d.Resume(trial=exploit.trial, reason=changed))
            elif self.experiment.checkpoints.awaits(donor) is not None:
                continue
            elif donor.checkpoint is not None:
                found.append(exploit)
            elif not _may_deliver(donor):
                found.append(d.Resume(trial=exploit.trial, reason=why.format(exploit.donor)))
        return found

    def _pause_if_wanted(self, trial: Trial) -> Iterator[Decision]:
        """Pause the trial if a user has requested it or another experiment needs room, unless the report ended the trial.

        The trial is paused only while its ranks wait. Otherwise the scheduler would not decide about later reports, and
        max_t would not apply to them. A trial that makes room for another experiment is resumed at once, but its next
        segment waits until it is this experiment's turn again. If the scheduler has just paused the trial that a user wants to
        pause, the trial is held, so that the scheduler does not resume it.
        """
        segment, runs = trial.segments[-1], self.experiment.state is _X.RUNNING
        if segment.leaving == "pause" and segment.commanded == "pause" and runs and not trial.held:
            yield d.Pause(trial=trial.number, reason="held by a user", held=True)
        if not segment.open or segment.leaving:
            return
        if segment.commanded == "pause":
            yield d.Pause(
                trial=trial.number, reason=f"{paused(self.experiment)} at iteration {trial.iteration}", held=True
            )
        elif segment.commanded == "yield" and runs:
            why = f"paused at iteration {trial.iteration} {segment.room_for}"
            yield d.Pause(trial=trial.number, reason=why, held=True)
            yield d.Resume(trial=trial.number, reason=f"continues when there is room again; {why}")

    def _resize(self, trial: Trial) -> Iterator[Decision]:
        """Let an elastic trial whose ranks wait at a report continue with a different number of ranks."""
        experiment = self.experiment
        if experiment.state is not _X.RUNNING or experiment.finishing is not None:
            return
        idle = self._asked is None and not experiment.segments.ready and not experiment.waiting_exploits
        if (decision := resized(experiment, trial, idle=idle)) is not None:
            yield decision

    def _ask_stopper(self, stopper: Stopper) -> Iterator[Decision]:
        """End the whole search if a `stop` criterion for the search is met."""
        if why := stopper.finished(self.trials.searched):
            yield from stop_all(self.experiment, why)
            yield d.Finish(reason=why)

    def _check_limits(self) -> Iterator[Decision]:
        """End the whole search if it has reached one of its limits."""
        if (found := limits.reached(self.experiment)) is None:
            return
        limit, finish = found
        if limit.stops_trials:
            yield from stop_all(self.experiment, finish.reason)
            yield finish
        else:
            yield from self._finish(finish.reason, finish.fatal)

    def _keep_time_for_repeats(self) -> Iterator[Decision]:
        """Stop the search's trials once the rest of the time budget is reserved for repeats.

        Trials that users have enqueued since may use that time.
        """
        if not repeats.time_is_for_repeats(self.experiment):
            return
        why = "the rest of the time budget is kept for repeats of the leading configurations"
        for trial in self.trials.searched:
            if trial.state in (_S.RUNNING, _S.PENDING) and trial.number not in self.experiment.late:
                yield d.Stop(trial=trial.number, reason=why)

    def _use_slots(self) -> Iterator[Decision | Question]:
        """Fill free slots with enqueued trials and the scheduler's choices. End the search when nothing is left to do."""
        experiment = self.experiment
        if experiment.finishing is not None and experiment.state is _X.RUNNING:
            yield from self._stop_paused(experiment.finishing)
        if experiment.late_resume is not None and not experiment.resumes_late:
            return
        while self._has_free_slot():
            if not (yield from self._use_slot()):
                return

    def _use_slot(self) -> Generator[Decision | Question, None, bool]:
        """Fill one free slot, or end the search. Return whether another slot may be filled."""
        experiment = self.experiment
        used_up = limits.used_up(experiment)  # as after a `continue` without a higher limit
        if experiment.queue:
            if used_up:
                return False
            yield from self._start_enqueued(experiment.queue[0])
            return True
        if repeats.time_is_for_repeats(experiment):
            return (yield from self._repeat_or_finish("the part of the time budget that is not for repeats is spent"))
        if (done := self.scheduler.finished(self.trials.searched, self.may_start)) is not None:
            if not experiment.segments.open and experiment.checkpoints.late:
                return False  # until the last uploads have ended, users may still add trials
            if self._waits_since is not None and (worst := self._worst_paused()) is not None:
                yield d.Stop(trial=worst, reason=f"stopped: the searcher waits for a result, and {done}")
                self._exhausted, self._waits_since = False, None
                return True
            return (yield from self._repeat_or_finish(done))
        try:
            choice = self.scheduler.choose(self.trials.searched, self.may_start)
        except (Exception, SystemExit) as error:
            yield from self._give_up("scheduler", error)
            return False
        if choice is not None and used_up:
            return False
        if isinstance(choice, d.Start):
            if self._asked is not None:
                return False
            if self.may_start:
                return (yield from self._start(self._why_now(choice))) or self._exhausted
            choice = None
        if choice is not None and can_resume(self.trials[choice.trial]):
            yield from self._continue_trial(choice)
            return True
        if not self._nothing_is_left():
            return False
        count = len(self.trials.searched)
        why = "the only trial ended" if count == 1 else f"all {counted(count, 'trial')} ended"
        return (yield from self._repeat_or_finish(f"{why}{self._why_no_more(count)}"))

    def _why_no_more(self, count: int) -> str:
        """Say that the searcher has ended the search before `num_samples` trials; return "" if it has not."""
        experiment = self.experiment
        total = None if self.scheduler.PROPOSES else self.searcher.total()
        if not (experiment.exhausted or self._exhausted) or total is None or count >= total + experiment.asked:
            return ""
        return f", and the searcher has no configurations for {total + experiment.asked - count} more"

    def _worst_paused(self) -> int | None:
        """Return the worst of the trials that only the scheduler has paused; None if there is none."""
        paused = [self.trials[number] for number in self.trials.searched.in_state(_S.PAUSED)]
        marks = {trial.number: self.experiment.leaderboard.of(trial) for trial in paused if can_resume(trial)}
        score = self.experiment.spec.objective.score
        return min(marks, key=lambda n: -math.inf if (mark := marks[n]) is None else score(mark.value), default=None)

    def _why_now(self, start: d.Start) -> d.Start:
        """Name what allows a new trial: the limit on concurrent trials or, if there is none, the resources."""
        limited = self.experiment.spec.limits.max_concurrent_trials is not None
        return start if limited or start.reason != ALLOWED else replace(start, reason=HAS_ROOM)

    def _repeat_or_finish(self, reason: str) -> Generator[Decision, None, bool]:
        """Evaluate a leading configuration again, or end the search. Return whether a trial was started.

        Repeats begin once no other trial runs. `reason` says why the search ends.
        """
        experiment = self.experiment
        if not repeats.wanted(experiment):
            yield from self._finish(reason)
            return False
        if experiment.segments.open > len(experiment.repeats.running):
            return False
        match repeats.next_repeat(experiment):
            case d.Start() as start:
                yield start
                return True
            case repeats.Over(why, note):
                if note is not None:
                    yield note
                yield from self._finish(f"{reason}; {why}" if why else reason)
        return False

    def _has_free_slot(self) -> bool:
        experiment, segments = self.experiment, self.experiment.segments
        runs = experiment.state is _X.RUNNING and experiment.finishing is None
        return runs and not segments.ready and segments.open < experiment.slots

    def _nothing_is_left(self) -> bool:
        """Return whether no segment is open, and nothing is pending that could start another segment.

        A pending model fit matters only if a trial is paused, because new trials do not wait for model fits.
        """
        fitting = self._fitting and bool(self.trials.count(_S.PAUSED))
        uploads = self.experiment.checkpoints.late or self.experiment.segments.awaiting
        waits = fitting or self.experiment.waiting_exploits or uploads or self._asked is not None
        running = self.experiment.segments.open - len(self.experiment.repeats.running)
        return running <= 0 and not waits and not self._waits_for_user()

    def _waits_for_user(self) -> bool:
        """Return whether trials that the scheduler has paused may wait for one that a user has paused, as in a bracket."""
        held = {self.trials[number].held for number in self.trials.searched.in_state(_S.PAUSED)}
        return held == {True, False}

    def _start_enqueued(self, enqueued: EnqueuedTrial) -> Iterator[Decision]:
        """Start a trial that a user has enqueued. Parameters that the user left out are drawn at random.

        Add a warning if the checkpoint to start from is gone, because the trial then starts from the beginning. A trial that
        continues another one gets the same values from functions of `sample_from`, which draw by the number of a trial.
        """
        number, context = len(self.trials), self.searcher.context
        gone = bool(enqueued.checkpoint) and not self.experiment.checkpoints.exists(enqueued.checkpoint)
        space = self.experiment.revisions.holding(enqueued.params, enqueued.space_revision)
        drawn = space.sample(keyed_random(context.seed, "enqueued", number), enqueued.params)
        tags: dict[str, Any] = {"asked_by": enqueued.key} if enqueued.key else {}
        if enqueued.parent is not None and space.has_functions:
            tags[DRAWN_AS] = self.trials[enqueued.parent].drawn_as
        yield d.Start(
            params={**drawn, **enqueued.params} if enqueued.parent is not None else drawn,
            number=number,
            asked=True,
            late=repeats.time_is_for_repeats(self.experiment),
            checkpoint=enqueued.checkpoint,
            parent=enqueued.parent,
            tags=tags,
            space_revision=enqueued.space_revision,
            reason=enqueued.reason or "enqueued by a user",
        )
        if gone:
            why = f"trial {number} starts from the beginning, because the checkpoint {enqueued.checkpoint} is gone"
            yield d.Note(reason=why, trial=number, warning=True)

    def _start(self, choice: d.Start) -> Generator[Decision | Question, None, bool]:
        """Start a trial with `choice.params` or else with the searcher's suggestion. Return whether one was started.

        It is not started if a slow searcher has to be asked in another process, or if the searcher has no more configurations.
        A searcher that waits is asked again once another trial has ended. Until then, paused trials use the free slots, since
        it may wait for their results.
        """
        number = len(self.trials)
        if choice.params is not None:
            yield replace(choice, number=number)
            return True
        if self.searcher.is_heavy(self.trials):
            self._asked = choice
            yield Ask(self._next_suggestion)
            return False
        try:
            suggestion = self.searcher.suggest(self._next_suggestion, self.trials)
        except (Exception, SystemExit) as error:  # the user's own searcher would raise again under the next driver
            yield from self._give_up("searcher", error)
            return False
        if suggestion is None:
            self._exhausted, self._waits_since = True, self._ended if self.searcher.waits() else None
            return False
        reason = f"{choice.reason}; {suggestion.note}" if suggestion.note else choice.reason
        yield replace(choice, number=number, params=suggestion.params, state=suggestion.state, reason=reason)
        return True

    def _continue_trial(self, choice: d.Resume | d.Exploit, asked: bool = False) -> Iterator[Decision]:
        """Resume a paused trial, or let it exploit its donor if the donor has or will have a checkpoint.

        asked: True if a user, rather than the scheduler, resumes the trial.
        """
        if isinstance(choice, d.Exploit) and not self._can_exploit(choice):
            choice = d.Resume(trial=choice.trial, reason=f"trial {choice.donor} has no checkpoint to continue from")
        if isinstance(choice, d.Resume):
            trial = self.trials[choice.trial]
            yield from self._warn_of_starting_over(trial, asked)
            if self.experiment.starts_over(trial) and STARTS_OVER not in choice.reason:
                choice = replace(choice, reason=f"{choice.reason}; it has no checkpoint, so it {STARTS_OVER}")
        yield choice

    def _can_exploit(self, decision: d.Exploit) -> bool:
        if self.trials[decision.trial].state.ended or decision.donor not in self.trials:
            return False
        donor = self.trials[decision.donor]
        return _may_deliver(donor) or self.experiment.checkpoints.awaits(donor) is not None

    def _warn_of_starting_over(self, trial: Trial, asked: bool) -> Iterator[Decision]:
        """Warn that a paused trial starts over, because it has no checkpoint. Warn only once in an experiment."""
        if self.experiment.started_over or not self.experiment.starts_over(trial):
            return
        if any(other.checkpoint is not None for other in self.trials):
            because = "it has no checkpoint that can still be used"
        else:
            because = "its reports had no checkpoint: pass checkpoint=... to tuner.report, or in a study to the trial's report"
            if not asked:
                because += "; or use a scheduler that never resumes trials, such as asha"
        why = f"trial {trial.number} starts over and repeats {counted(trial.iteration, 'report')}, because {because}"
        yield d.Note(reason=why, trial=trial.number, warning=True)

    def _finish(self, reason: str, fatal: int | None = None) -> Iterator[Decision]:
        """End the search. `fatal` is the trial whose failure the reason names, if the experiment fails because of it."""
        unseen = self.experiment.unseen & self.experiment.used_by_stop
        if never := [name for name in self.experiment.missed if name in unseen]:
            reason += f"; no report had {names(never)}, which stop uses"
        yield from self._stop_paused(reason)
        yield d.Finish(reason=reason, failed=fatal is not None, fatal=fatal)

    def _stop_paused(self, reason: str) -> Iterator[Decision]:
        for number in self.trials.in_state(_S.PAUSED):
            paused = self.trials[number].reason or "paused"
            # Begin with what is specific to this trial, because tables show only the beginning of a reason.
            yield d.Stop(trial=number, reason=f"{paused}; stopped because the search ended: {reason}")

    def _fit_request(self) -> Fit | None:
        """Return the model fit that the scheduler requests; None if it requests none now."""
        experiment = self.experiment
        if experiment.state is not _X.RUNNING or experiment.finishing is not None or experiment.ran < self._fit_again:
            return None
        payload = self.scheduler.fit_request(self.trials.searched)
        if payload is None:
            return None
        self._fitting = True
        return Fit(payload)

    # -- verdicts --------------------------------------------------------------------------------------------------------

    def ending_verdict(self, trial: Trial, leaving: Leave) -> Verdict:
        """Return the verdict that ends a segment: stop, pause or exploit, and whether to save a checkpoint."""
        match leaving:
            case "pause":
                return Verdict(action="pause", save_checkpoint=True, reason=trial.reason)
            case "exploit":
                return Verdict(action="exploit", reason=trial.reason)
            case "stop":
                completed = trial.state is _S.COMPLETED
                save = (self.experiment.spec.checkpoint.at_end and completed) or self._is_best_yet(trial)
                return Verdict(action="stop", save_checkpoint=save, reason=trial.reason, completed=completed)
            case _:
                assert_never(leaving)

    def continuing_verdict(self, trial: Trial, segment: Segment) -> Judgement:
        """Return the verdict for a segment that continues: whether to save a checkpoint, and the next milestone."""
        asked = (  # the verdict is requested again because the answer was lost, or the scheduler has just been asked
            segment.decided_at == segment.report_no > 0
            or (segment.scored and segment.decide_at is not None and trial.t >= segment.decide_at)
        )
        save = (
            (asked and self.scheduler.SAVES_AT_MILESTONES)
            or save_is_due(segment, self._save_after(segment), self.experiment.ran)
            or self._is_best_yet(trial)
        )
        milestone, decide_at = self.next_milestone(trial, segment)
        return Judgement(Verdict(next_milestone=milestone, save_checkpoint=save), decide_at, asked)

    def _is_best_yet(self, trial: Trial) -> bool:
        """Return whether the best checkpoint is kept, the trial leads the experiment, and its newest report is its best."""
        best, mark = self.experiment.leaderboard.best, trial.mark("all")
        return (
            self.experiment.spec.checkpoint.keep_best != 0
            and best is not None
            and best[1] == trial.number
            and mark is not None
            and mark.iteration == trial.iteration
        )

    def next_milestone(self, trial: Trial, segment: Segment) -> tuple[int | None, float | None]:
        """Return the report_no at which the ranks wait next, and the lowest time_attr value at which the scheduler decides."""
        spec, decide_at = self.experiment.spec, segment.decide_at
        undecided = not segment.scored and decide_at is not None and trial.t >= decide_at
        repeated = trial.repeat_of is not None
        if repeated:
            decide_at = None
        elif not undecided:  # else the scheduler is asked at the next report that has the objective
            decide_at = self.scheduler.milestone(trial, self.trials.searched)
        stop_at = self.stopper.milestone(trial) if self.stopper is not None and not repeated else None
        end = None if spec.max_t is None else float(spec.max_t)
        again = repeats.end_of(self.experiment, trial)
        wanted, now = (decide_at, stop_at, end, again), self.experiment.ran
        return next_milestone(spec, trial, segment, wanted, self._save_after(segment), now), decide_at

    def _save_after(self, segment: Segment) -> float | None:
        """Return the seconds after which this segment's next periodic checkpoint is due; None if it saves none."""
        return self.experiment.saving.seconds(segment.workers / self.experiment.spec.scaling.num_workers)


def _may_deliver(donor: Trial) -> bool:
    """Return whether the donor has a checkpoint, or may still save one."""
    return donor.checkpoint is not None or donor.holds_resources or donor.next is not None
