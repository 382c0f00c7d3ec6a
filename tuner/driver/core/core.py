"""The core of one experiment, which connects its state and its decider."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.decisions import Decision
from tuner.domain.events import Event
from tuner.domain.experiment import Spec
from tuner.domain.segments import SegmentRef, Verdict
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Population, Trial
from tuner.driver.core.actions import Question
from tuner.driver.core.decider import Decider
from tuner.driver.core.rules.sizes import first_size
from tuner.driver.core.state.effects import Effects
from tuner.driver.core.state.state import State
from tuner.schedulers.base import Fact, Scheduler
from tuner.schedulers.stoppers import Stopper
from tuner.search.base import Searcher

log = logging.getLogger(__name__)


_OF_OPEN_SEGMENTS = (e.Reported, e.SegmentStarted, e.SegmentEnded, e.Waiting, e.Drawn, e.Noted, e.RoomWanted)
"""Events that are ignored once their segment has ended. `CheckpointSaved` is not: an upload may end after its segment."""


class Core:
    """The core of one experiment, and the only writer of its trials.

    `experiment` is the state, from which everything else can be read. `notes` are messages for users, which a new
    experiment logs first.
    """

    def __init__(
        self,
        spec: Spec,
        scheduler: Scheduler,
        searcher: Searcher,
        stopper: Stopper | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.scheduler, self.searcher, self.stopper, self.notes = scheduler, searcher, stopper, notes
        self.experiment = State(spec, scheduler, searcher, stopper)
        self.decider = Decider(self.experiment, searcher, notes)
        self._effects = Effects()

    @property
    def spec(self) -> Spec:
        return self.experiment.spec

    @property
    def trials(self) -> Population:
        return self.experiment.trials

    @property
    def state(self) -> ExperimentState:
        return self.experiment.state

    @property
    def ended(self) -> bool:
        return self.experiment.state.ended

    @property
    def seq(self) -> int:
        """Return the event_seq of the newest log entry."""
        return self.experiment.seq

    def summary(self) -> dict[str, object]:
        """Return the summary for the experiment's row: the best trial, the number of trials by state, why the search ended."""
        return self.experiment.summary()

    def best_trial(self) -> Trial | None:
        """Return the trial with the best report, or, if the spec's scope is "last", the one with the best last report.

        After repeats, return the first run of the configuration with the best expected value. Return None if no report has
        a finite objective and satisfies the constraints.
        """
        return self.experiment.repeats.best or self.experiment.leaderboard.best_trial(self.trials)

    def fold(self, seq: int, entry: Event | Decision) -> None:
        """Apply a committed log entry to the state. Make no decisions and produce no actions."""
        self.experiment.apply(seq, entry, Effects())

    def handle(self, event: Event) -> Effects:
        """Apply a new event to the state and decide what follows. Return the log entries to commit and the actions.

        An event that was handled before, or that is from a segment that has ended, has no effect.
        """
        effects = self._effects = Effects()
        if self._is_stale(event):
            return effects
        event = self.decider.dated(event)
        missed = len(self.experiment.missed)
        facts = self._apply(event)
        for decision in self.decider.after_event(event, self.experiment.missed[missed:]):
            facts += self._take(decision)
        for fact in facts:  # a decision about a fact may lead to more facts
            for decision in self.decider.after_fact(fact):
                facts += self._take(decision)
        for step in self.decider.next_steps(event):
            if isinstance(step, Question):
                effects.actions.append(step)
            else:
                self._take(step)
        return effects

    def verdict(self, ref: SegmentRef) -> Verdict:
        """Return the verdict for the waiting ranks of this segment. A second call gives the same verdict."""
        segment = self.experiment.segment(ref)
        if segment is None:
            return Verdict(action="stop", reason="this segment has ended")
        trial = self.trials[ref.trial]
        if segment.leaving is not None:
            return self.decider.ending_verdict(trial, segment.leaving)
        verdict, decide_at, asked = self.decider.continuing_verdict(trial, segment)
        self.experiment.set_milestone(segment, verdict.next_milestone, decide_at, asked)
        return verdict

    def may_yield(self, ref: SegmentRef) -> bool:
        """Return whether this segment can make room for another experiment now."""
        return self.experiment.segment(ref) is not None and self.experiment.may_yield(self.trials[ref.trial])

    def first_milestone(self, ref: SegmentRef) -> int | None:
        """Return the report_no of the first report at which the ranks of this segment wait; None if they never wait."""
        segment = self.experiment.segment(ref)
        if segment is None:
            return 1  # at the first report, the ranks learn that the segment has ended
        milestone, decide_at = self.decider.next_milestone(self.trials[ref.trial], segment)
        self.experiment.set_milestone(segment, milestone, decide_at)
        return milestone

    def _take(self, decision: Decision) -> list[Fact]:
        """Log a new decision and apply it. Return the facts that follow from it."""
        if isinstance(decision, d.Exploit):
            return self._apply(self._pinned(decision))
        if isinstance(decision, d.Start) and self.spec.scaling.elastic:
            return self._apply(first_size(self.experiment, decision))
        return self._apply(decision)

    def _pinned(self, decision: d.Exploit) -> Decision:
        """Fill in the donor's checkpoint.

        If the donor has none yet, or its last segment is still uploading one, return a decision to pause the exploiting trial
        until the checkpoint is ready.
        """
        decision = replace(decision, space_revision=self.experiment.revisions.newest, goes_back=True)
        donor = self.trials[decision.donor].checkpoint
        late = self.experiment.checkpoints.awaits(self.trials[decision.donor]) is not None
        if donor is not None and donor.ready and not late:
            return replace(decision, checkpoint=donor.id)
        reason = f"waits for the checkpoint of trial {decision.donor}, from which it will continue: {decision.reason}"
        return d.Pause(trial=decision.trial, reason=reason, held=True, then=decision.to_json())

    def _apply(self, entry: Event | Decision) -> list[Fact]:
        """Add an entry to the log and apply it to the state. Return the facts that follow from it."""
        seq = self.experiment.seq + 1
        self._effects.log.append((seq, entry))
        return self.experiment.apply(seq, entry, self._effects)

    def _is_stale(self, event: Event) -> bool:
        """Return whether an event is about a segment that has ended, or is a report out of order."""
        if not isinstance(event, _OF_OPEN_SEGMENTS):
            return False
        segment = self.experiment.open_segment(event.trial, event.segment)
        if segment is None:
            return True
        if not isinstance(event, e.Reported) or event.report_no == segment.report_no + 1:
            return False
        if event.report_no > segment.report_no:
            log.warning(
                "%s: report %s arrived after report %s, so it has to wait for the reports in between",
                event.ref,
                event.report_no,
                segment.report_no,
            )
        return True
