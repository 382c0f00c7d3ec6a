"""Apply users' requests (commands, changes to the spec, enqueued trials) and requests to make room for other experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from tuner.domain import events as e
from tuner.domain.segments import SegmentRef
from tuner.domain.states import ExperimentState, TrialState, change_experiment
from tuner.domain.trial import Trial
from tuner.driver.core.actions import Interrupt
from tuner.driver.core.state import limits
from tuner.driver.core.state.enqueued import EnqueuedTrial
from tuner.space.revisions import Revisions

if TYPE_CHECKING:
    from tuner.driver.core.state.state import State

_S, _X = TrialState, ExperimentState


def apply(state: State, event: e.Commanded) -> None:
    """Record a user's command in the state. The decisions that it leads to are made afterwards, by `after_command`."""
    if event.trial is not None:
        if event.trial in state.trials:
            _apply_to_trial(state, event.command, state.trials[event.trial], event.reason)
        return
    match event.command:
        case "pause":
            pause_all(state)
        case "resume":
            if state.state in (_X.PAUSED, _X.PAUSING):
                state.state = change_experiment(state.state, _X.RUNNING)
                state.unsavable = None
                for trial in state.trials:
                    if trial.segments:
                        trial.segments[-1].commanded = None
        case "cancel":
            if state.state is not _X.CANCELLING and not state.state.ended:
                pending = state.state is _X.PENDING
                state.state = change_experiment(state.state, _X.CANCELLED if pending else _X.CANCELLING)
                state.finishing = f"cancelled {event.reason or 'by a user'}"
        case "kill":
            _kill(state, event)
        case "continue":
            _continue(state, event.for_trials)
        case "stop" | "retry":
            pass  # these commands are for single trials only
        case _:
            assert_never(event.command)
    state.late_resume = event if event.command == "resume" and limits.end_search(state) else None


def _apply_to_trial(state: State, command: e.Command, trial: Trial, reason: str) -> None:
    if command == "pause" and trial.holds_resources:
        want_pause(state, trial)
    elif command == "kill" and trial.holds_resources:
        state.act(Interrupt(trial.ref, "kill"))
    elif command == "retry" and trial.state is _S.FAILED:
        start, max_t = trial.checkpoint, state.spec.max_t
        if start is not None and max_t is not None and state.progress.start_time(trial, start) >= max_t:
            start = None  # from there, the new trial would train beyond max_t
        name, where = (start.id, f"iteration {start.step}") if start is not None else ("", "the beginning")
        why = f"retry of trial {trial.number} from {where}, {reason or 'by a user'}"
        same = EnqueuedTrial(
            params=dict(trial.params),
            checkpoint=name,
            parent=trial.number,
            reason=why,
            space_revision=trial.space_revision,
        )
        enqueue(state, [same])


def enqueue(state: State, trials: Sequence[EnqueuedTrial]) -> None:
    """Add a user's trials to the queue of trials to start next."""
    present = state.revisions.newest
    state.queue.extend(
        replace(trial, space_revision=present) if trial.space_revision is None else trial for trial in trials
    )
    state.asked += len(trials)
    for trial in trials:
        state.checkpoints.add_requests(trial.checkpoint, 1)
    _tell_scheduler(state)


def _kill(state: State, event: e.Commanded) -> None:
    """Begin to cancel the experiment, and kill its worker groups at once."""
    if state.state.ended:
        return
    if state.state is not _X.CANCELLING:
        pending = state.state is _X.PENDING
        state.state = change_experiment(state.state, _X.CANCELLED if pending else _X.CANCELLING)
    state.finishing = f"killed {event.reason or 'by a user'}"
    for trial in state.trials:
        if trial.holds_resources:
            state.act(Interrupt(trial.ref, "kill"))
    for number, segment in dict.fromkeys((number, segment) for number, segment, _ in state.checkpoints.late.values()):
        state.act(Interrupt(SegmentRef(number, segment), "kill"))


def _continue(state: State, for_trials: bool) -> None:
    """Let new trials start again, whatever ended the search. If the experiment has ended, it runs again."""
    if state.state is _X.CANCELLING:
        return
    goes_on = state.finishing is None and not state.state.ended
    if state.state.ended:
        state.state, state.unsavable = change_experiment(state.state, _X.RUNNING), None
    state.finishing, state.failing, state.fatal, state.error = None, False, None, None
    state.exhausted, state.capped = False, False
    if not (for_trials and goes_on):
        state.counted = limits.counts(state)


def amend(state: State, changes: Mapping[str, Any]) -> None:
    """Change the spec, and pass the changes on to the scheduler and the searcher."""
    state.spec = state.spec.amended(changes)
    context = replace(state.searcher.context, num_samples=state.spec.num_samples)
    if "space" in changes:
        state.revisions = Revisions.of(state.spec)
        context = replace(context, space=state.revisions.present, revisions=state.revisions)
    state.searcher.amend(context)
    state.exhausted = False
    _tell_scheduler(state)


def _tell_scheduler(state: State) -> None:
    """Pass the limits and the number of trials on to the scheduler."""
    given = state.spec.limits
    samples = state.spec.num_samples if state.scheduler.PROPOSES else state.searcher.total()
    context = replace(
        state.scheduler.context,
        space=state.searcher.context.space,
        revisions=state.searcher.context.revisions,
        num_samples=None if samples is None else samples + state.asked,
        slots=given.max_concurrent_trials,
        time_budget_s=given.time_budget_s,
        budget=given.budget,
    )
    state.scheduler.amend(context)


def make_room(state: State, event: e.RoomWanted) -> None:
    """Begin to pause a trial for another experiment, if the trial can be paused."""
    trial = state.touch(event.trial)
    if state.may_yield(trial):
        trial.segments[-1].commanded, trial.segments[-1].room_for = "yield", event.reason
        state.act(Interrupt(trial.ref, "pause"))


def pause_all(state: State) -> None:
    """Begin to pause the experiment and the trials that run."""
    begins = state.state is _X.RUNNING
    if begins:
        state.state = change_experiment(state.state, _X.PAUSING)
    for trial in state.trials:
        if trial.holds_resources and (begins or trial.segments[-1].commanded):
            want_pause(state, trial)


def want_pause(state: State, trial: Trial) -> None:
    """Record that a user wants to pause the trial, and make the ranks wait soon, since it can be paused only then.

    If its segment is leaving already, the trial is paused in the next one, if that is planned.
    """
    segment = trial.segments[-1]
    if not segment.leaving or trial.next is not None:
        segment.commanded = "pause"
    if not segment.leaving:
        state.act(Interrupt(trial.ref, "pause"))
