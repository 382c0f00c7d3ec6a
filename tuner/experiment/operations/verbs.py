"""The verbs: requests that users can make of an experiment or a trial.

`VERBS` is the only declaration of a verb. The routes, the commands of `tuner`, the field `actions` of an experiment, the
page's buttons and docs/api_reference.md are made from it. A verb only writes a command; `tuner.driver.core` decides what the
driver does about it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from tuner.domain.events import Command, ExperimentCommand, TrialCommand
from tuner.domain.states import ExperimentState, TrialState
from tuner.domain.thinned import why_thinned
from tuner.errors import Conflict

if TYPE_CHECKING:
    from tuner.store import ExperimentRecord, Store, TrialRecord
    from tuner.store.commands import Request

_E = ExperimentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """The button of a verb on the page, and the question that the page asks before it sends the verb.

    effect: what the verb does to the experiment or the trial, in one or two sentences that refer to that as "it".
    keep: the label of the button that sends nothing.
    final: True if the effect cannot be undone.
    in_menu: True if the button is in a menu; only for experiments.
    """

    effect: str
    keep: str
    final: bool
    in_menu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A command that users can give.

    name: the name in addresses and on the command line.
    summary: what the command does, in one imperative sentence, for OpenAPI and ``--help``.
    past: the past participle that completes "it cannot be ...", such as "paused".
    done: states in which the command does nothing and raises no error, so that it may be repeated.
    refused: states in which the command raises an error.
    undoes: another command that this one withdraws if that command is still pending.
    button: the verb's button on the page; None if the page has a form of its own for the verb.
    adopts: True if the command hands the experiment over to the service after the script that created it has ended.
    """

    name: Command
    summary: str
    past: str
    done: frozenset[ExperimentState] | frozenset[TrialState]
    refused: frozenset[ExperimentState] | frozenset[TrialState] = frozenset()
    undoes: Command | None = None
    button: Button | None = None
    adopts: bool = False


_OVER = frozenset({*(state for state in _E if state.ended), _E.CANCELLING})

VERBS: dict[Command, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            name="pause",
            summary="Pause every trial at its next report.",
            past="paused",
            done=frozenset({_E.PAUSED, _E.PAUSING}),
            refused=_OVER,
            undoes="resume",
            button=Button(
                effect=(
                    "Every running trial stops at its next report, keeps its newest checkpoint and releases its resources. "
                    "You can resume it at any time; a trial that has no checkpoint then starts from the beginning."
                ),
                keep="Keep it running",
                final=False,
            ),
        ),
        Verb(
            name="resume",
            summary="Continue an experiment that is paused, or whose script has ended.",
            past="resumed",
            done=frozenset({_E.PENDING, _E.RUNNING}),
            refused=_OVER,
            undoes="pause",
            button=Button(
                effect=(
                    "Its trials continue from their newest checkpoints, or from the beginning if they have none, as resources "
                    "become free."
                ),
                keep="Leave it paused",
                final=False,
            ),
            adopts=True,
        ),
        Verb(
            name="cancel",
            summary="End the experiment and all its trials.",
            past="cancelled",
            done=frozenset({_E.CANCELLED, _E.CANCELLING}),
            refused=frozenset({_E.COMPLETED, _E.FAILED}),
            button=Button(
                effect=(
                    "Running trials end at their next report, where they can still save a checkpoint, and no new ones start. "
                    "Results and checkpoints so far are kept."
                ),
                keep="Keep it",
                final=True,
            ),
        ),
        Verb(
            name="kill",
            summary="End the experiment at once, without waiting for reports or last checkpoints.",
            past="killed",
            done=frozenset({_E.CANCELLED}),
            refused=frozenset({_E.COMPLETED, _E.FAILED}),
            button=Button(
                effect=(
                    "Its processes are killed now, without a last report or checkpoint: use this if cancelling takes too long. "
                    "Results and checkpoints so far are kept."
                ),
                keep="Keep it",
                final=True,
                in_menu=True,
            ),
        ),
        Verb(
            name="continue",
            summary="Run an ended experiment again, if its limits allow more trials.",
            past="continued",
            done=frozenset({_E.PENDING, _E.RUNNING, _E.PAUSING, _E.PAUSED}),
            refused=frozenset({_E.CANCELLING}),
            adopts=True,
        ),
    )
}
"""The verbs of experiments, by name."""

TRIAL_VERBS: dict[Command, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            name="stop",
            summary="End the trial at its next report. The experiment continues.",
            past="stopped",
            done=frozenset(state for state in TrialState if state.ended),
            button=Button(
                effect=(
                    "It ends at its next report and keeps its results and checkpoints; the experiment continues without it."
                ),
                keep="Keep it running",
                final=True,
            ),
        ),
        Verb(
            name="kill",
            summary=(
                "Kill the trial's processes at once, without waiting for a report or last checkpoint. The "
                "experiment continues."
            ),
            past="killed",
            done=frozenset(state for state in TrialState if state.ended),
            button=Button(
                effect=(
                    "Its processes are killed now, without a last report or checkpoint: use this if stopping takes too long. "
                    "It keeps its results and checkpoints so far; the experiment continues without it."
                ),
                keep="Keep it running",
                final=True,
            ),
        ),
        Verb(
            name="retry",
            summary="Retry a failed trial: start a new trial with its configuration from its newest checkpoint.",
            past="retried",
            done=frozenset(),
            refused=frozenset(state for state in TrialState if state is not TrialState.FAILED),
            button=Button(
                effect=(
                    "A new trial with the same parameters starts from this trial's newest checkpoint, or from the beginning if "
                    "there is none. An experiment that has ended runs again."
                ),
                keep="Leave it",
                final=False,
            ),
        ),
    )
}
"""The verbs of trials, by name."""

assert VERBS.keys() == set(get_args(ExperimentCommand)), "VERBS differs from ExperimentCommand"
assert TRIAL_VERBS.keys() == set(get_args(TrialCommand)), "TRIAL_VERBS differs from TrialCommand"

_DRIVEN = frozenset({_E.PENDING, _E.RUNNING, _E.PAUSING})
"""The states in which the script that created an experiment may be about to drive the experiment."""

_REASON = "by a user"

Action = Literal[ExperimentCommand, "edit", "fork", "enqueue", "archive", "unarchive", "delete"]
"""The actions that users can take on an experiment: the verbs, and some other actions."""

TrialAction = Literal[TrialCommand, "fork"]
"""The actions that users can take on a trial."""

CheckpointAction = Literal["fork", "pin", "unpin"]
"""The actions that users can take on a checkpoint. `fork` starts a new trial from the checkpoint."""


def act(store: Store, name: Command, experiment: str) -> ExperimentRecord:
    """Write the command for a verb of an experiment, such as pause.

    Raises:
        NotFound: there is no such experiment.
        Conflict: the state of the experiment does not allow the verb.
    """
    verb, record, now = VERBS[name], store.experiments.get(experiment), time.time()
    abandoned = verb.adopts and verb.undoes is not None and record.abandoned(now)
    if record.state in verb.done and not abandoned and not _pending(store, record, verb.undoes):
        return record
    check_verb(name, record)
    if verb.adopts and (abandoned or (record.state not in _DRIVEN and (record.lease_until or 0.0) <= now)):
        store.drivers.adopt(record.id)
    store.commands.add(record.id, verb.name, None, _REASON)
    return store.experiments.get(experiment)


def check_verb(name: Command, record: ExperimentRecord) -> None:
    """Raise Conflict if the state of the experiment does not allow the verb, or if the experiment cannot run."""
    verb = VERBS[name]
    if record.state in verb.refused:
        raise Conflict(f"{record.public_id} is {record.state} and cannot be {verb.past}")
    if (why := _why_it_stays(name, record)) is not None:
        raise Conflict(f"{record.public_id} cannot be {verb.past}: {why}")


def act_on_trial(store: Store, name: Command, trial: str, request: Request | None = None) -> TrialRecord:
    """Write the command for a verb of a trial, such as stop.

    request: the user's request that needs this, if it has an idempotency key.

    Raises:
        NotFound: there is no such trial.
        Conflict: the state of the trial or of its experiment does not allow the verb.
    """
    verb, record = TRIAL_VERBS[name], store.trials.get(trial)
    if record.state in verb.refused:
        raise Conflict(f"{trial} is {record.state} and cannot be {verb.past}")
    if name == "retry":  # a retry continues an experiment that has ended
        check_verb("continue", store.experiments.by_id(record.experiment_id))
    if record.state not in verb.done:
        store.commands.add(
            record.experiment_id, verb.name, record.number, _REASON, reopen=name == "retry", request=request
        )
    return store.trials.get(trial)


def actions(record: ExperimentRecord, abandoned: bool) -> list[Action]:
    """Return the actions that the current state of an experiment allows, such as for a menu.

    abandoned: True if the script that created the experiment has ended; see `ExperimentRecord.abandoned`.
    """
    found: list[Action] = [cast("Action", verb.name) for verb in VERBS.values() if _is_offered(verb, record, abandoned)]
    found += ["edit", "fork"]
    if can_take_trials(record):
        found.append("enqueue")
    if record.archived_at is not None:
        found.append("unarchive")
    elif record.state.ended:
        found.append("archive")
    if record.state.ended:
        found.append("delete")
    return found


def can_take_trials(record: ExperimentRecord) -> bool:
    """Return True if the state of the experiment lets users ask for more trials."""
    return record.state not in VERBS["continue"].refused and why_it_stays_ended(record) is None


def why_it_stays_ended(record: ExperimentRecord) -> str | None:
    """Return why an experiment can never run again, or None if it can."""
    if record.incomplete:
        return record.error or "its import is not complete"
    if record.why_undrivable is not None:
        return record.why_undrivable
    if record.thinned_at is not None:
        return f"{why_thinned(record.thinned_at, 'continuing it')}; a fork of it can run"
    return None


def _why_it_stays(name: Command, record: ExperimentRecord) -> str | None:
    """Return why the verb would not make an experiment run, or None if it would, or is not meant to."""
    match name:
        case "continue":
            return why_it_stays_ended(record)
        case "resume":
            return record.why_undrivable
        case _:
            return None


def _is_offered(verb: Verb, record: ExperimentRecord, abandoned: bool) -> bool:
    if _why_it_stays(verb.name, record) is not None:
        return False
    if verb.undoes is not None and abandoned:  # an abandoned experiment can be resumed, not paused
        return verb.adopts
    return record.state not in verb.done and record.state not in verb.refused


def _pending(store: Store, record: ExperimentRecord, command: Command | None) -> bool:
    return any(one.command == command and one.trial is None for one in store.commands.pending([record.id]))
