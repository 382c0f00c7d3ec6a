"""The core of one experiment: its state, its decider, and what goes between them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tuner.domain import decisions as d
from tuner.domain import events as e
from tuner.domain.batch import Entry
from tuner.domain.decisions import Decision
from tuner.domain.events import Event
from tuner.domain.experiment import Spec
from tuner.domain.segments import SegmentRef, Verdict
from tuner.domain.states import ExperimentState
from tuner.domain.trial import Population, Trial
from tuner.driver.core.actions import Action, Ask, Fit
from tuner.driver.core.decider import Decider
from tuner.driver.core.state import Change, State
from tuner.schedulers.base import Fact, Scheduler
from tuner.schedulers.stoppers import Stopper
from tuner.search.base import Searcher

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Effects:
    """What handling events leads to: entries and rows to commit (`log`, `touched`) and, after that, things to do (`actions`)."""

    log: list[Entry] = field(default_factory=list)
    touched: dict[int, None] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)

    def absorb(self, other: Effects) -> None:
        """Add what a later event led to."""
        self.log += other.log
        self.touched |= other.touched
        self.actions += other.actions


class Core:
    """One experiment. It is the only writer of its trials. `notes` are the first entries of its log.

    Read everything else that is known of the experiment from `experiment`.
    """

    def __init__(
        self,
        spec: Spec,
        scheduler: Scheduler,
        searcher: Searcher,
        stopper: Stopper | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.spec, self.scheduler, self.searcher, self.stopper, self.notes = spec, scheduler, searcher, stopper, notes
        self.experiment = State(spec, scheduler, stopper, searcher.metric_constraints())
        self.decider = Decider(self.experiment, searcher, notes)
        self._effects = Effects()

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
        """Return what the experiment's row shows: the best trial, counts by state, why it ended."""
        return self.experiment.summary()

    def best_trial(self) -> Trial | None:
        """Return the trial with the best report, or with the best last report if the scope says so.

        None if no report is finite and within the constraints.
        """
        return self.experiment.standing.best_trial(self.trials)

    def fold(self, seq: int, entry: Event | Decision) -> None:
        """Take in an entry that was committed before. Decide nothing and do nothing."""
        self.experiment.apply(seq, entry)

    def handle(self, event: Event) -> Effects:
        """Take in a new event and decide. An event that came before, or that comes from a segment that is over, is ignored."""
        effects = self._effects = Effects()
        if self._is_stale(event):
            return effects
        change = self._apply(event)
        facts = deque(change.facts)
        for decision in self.decider.after_event(event, change.missed):
            facts.extend(self._take(decision))
        while facts:
            for decision in self.decider.after_fact(facts.popleft()):
                facts.extend(self._take(decision))
        for step in self.decider.next_steps(event):
            if isinstance(step, Ask | Fit):
                effects.actions.append(step)
            else:
                self._take(step)
        return effects

    def verdict(self, ref: SegmentRef) -> Verdict:
        """Return what the ranks of this segment do now, given that they wait. Asking twice gives the same answer."""
        judgement = self.decider.verdict(ref)
        if judgement.verdict.action == "continue":
            milestone = judgement.verdict.next_milestone
            self.experiment.set_milestone(ref, milestone, judgement.decide_at, judgement.asked)
        return judgement.verdict

    def first_milestone(self, ref: SegmentRef) -> int | None:
        """Return the report_no of the first report at which the ranks of this segment wait; None if they need not."""
        segment = self.experiment.segment(ref)
        if segment is None:
            return 1  # where its ranks learn that it is over
        milestone, decide_at = self.decider.next_milestone(self.trials[ref.trial], segment)
        self.experiment.set_milestone(ref, milestone, decide_at)
        return milestone

    def _take(self, decision: Decision) -> list[Fact]:
        """Log a decision made just now, and let it take effect. Return the facts that follow from it."""
        return self._apply(self._pinned(decision) if isinstance(decision, d.Exploit) else decision).facts

    def _pinned(self, decision: d.Exploit) -> Decision:
        """Name the donor's checkpoint in an exploit; or pause the trial until the donor has one."""
        donor = self.trials[decision.donor].checkpoint
        if donor is not None and donor.ready:
            return replace(decision, checkpoint=donor.id)
        reason = f"waits for the checkpoint of trial {decision.donor}, which it is to go on from: {decision.reason}"
        return d.Pause(trial=decision.trial, reason=reason, held=True, then=decision.to_json())

    def _apply(self, entry: Event | Decision) -> Change:
        """Log an entry, and let it take effect on the state."""
        seq = self.experiment.seq + 1
        self._effects.log.append((seq, entry))
        change = self.experiment.apply(seq, entry)
        self._effects.touched |= change.touched
        self._effects.actions += change.actions
        return change

    def _is_stale(self, event: Event) -> bool:
        """Whether an event is about a segment that is over, or is a report out of turn."""
        if not isinstance(event, e.Waiting | e.SegmentStarted | e.Reported | e.SegmentEnded | e.Drawn | e.Noted):
            return False
        segment = self.experiment.segment(event.ref)
        if segment is None:
            return True
        if isinstance(event, e.Reported) and event.report_no > segment.report_no + 1:
            log.warning(
                "%s: report %s came after report %s and is not counted before those between them",
                event.ref,
                event.report_no,
                segment.report_no,
            )
        return isinstance(event, e.Reported) and event.report_no != segment.report_no + 1
