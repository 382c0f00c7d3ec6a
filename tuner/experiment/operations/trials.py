"""The operations on single trials and checkpoints: enqueue configurations, fork a trial, pin a checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tuner.domain.events import Command
from tuner.errors import Conflict, SpecError
from tuner.experiment.operations.verbs import (
    TRIAL_VERBS,
    CheckpointAction,
    TrialAction,
    act_on_trial,
    can_take_trials,
    check_verb,
)
from tuner.space import Space
from tuner.space.revisions import Revisions
from tuner.store import CheckpointRecord, ExperimentRecord, Store, TrialRecord
from tuner.store.commands import FOR_TRIALS, Request


def enqueue(
    store: Store,
    experiment: str,
    configurations: Sequence[Mapping[str, Any]],
    *,
    idempotency_key: str | None = None,
) -> ExperimentRecord:
    """Enqueue trials with these configurations, which start before the searcher's trials and do not count in num_samples.

    Parameters that a configuration leaves out are drawn at random. An experiment that has ended runs again.

    If the `idempotency_key` was used before for the same configurations of this experiment, enqueue nothing.

    Raises:
        NotFound: there is no such experiment.
        Conflict: the experiment is being cancelled, or the key was used before for another request.
        SpecError: a configuration does not fit the search space. The error lists all mistakes.
    """
    record = store.experiments.get(experiment)
    request = Request.of(idempotency_key, ["enqueue", list(configurations)])
    if store.commands.sent_with(record.id, request):
        return record
    space = Space.from_json(record.spec.space, opaque=True)
    errors: list[tuple[str, str]] = []
    points = []
    for at, configuration in enumerate(configurations):
        try:
            params = space.check(configuration, f"/configurations/{at}")
            points.append({"params": params, "space_revision": record.spec.space_revision})
        except SpecError as error:
            errors += error.errors
    if errors:
        raise SpecError(errors)
    _ask(store, record, points, "enqueued by a user", request)
    return store.experiments.get(experiment)


def act_once(store: Store, name: Command, trial: str, *, idempotency_key: str | None = None) -> TrialRecord:
    """Do the same as `act_on_trial`, or nothing if the `idempotency_key` was used before for the same verb of this trial.

    Raises:
        NotFound: there is no such trial.
        Conflict: the state of the trial or of its experiment does not allow the verb, or the key was used before for another
            request.
    """
    found = store.trials.get(trial)
    request = Request.of(idempotency_key, [name, found.number])
    if store.commands.sent_with(found.experiment_id, request):
        return found
    return act_on_trial(store, name, trial, request)


def fork_trial(
    store: Store,
    trial: str,
    changes: Mapping[str, Any],
    checkpoint: str | None = None,
    *,
    idempotency_key: str | None = None,
) -> str:
    """Enqueue a new trial of the same experiment, which starts from a checkpoint of this trial, with changed params.

    An experiment that has ended runs again. Return the key by which `asked_by` finds the new trial after it has started.

    Args:
        store: the database.
        trial: the public id of the trial to fork.
        changes: the flat params to change. Other params are copied from the trial.
        checkpoint: a checkpoint of the trial. None: the newest checkpoint from which the trial itself could continue.
        idempotency_key: if this key was used before for the same request, enqueue nothing.

    Raises:
        NotFound: there is no such trial or checkpoint.
        Conflict: there is no checkpoint to start from, the checkpoint was saved at max_t, or the experiment is being cancelled;
            or the key was used before for another request.
        SpecError: the changes do not fit the search space.
    """
    found = store.trials.get(trial)
    record = store.experiments.by_id(found.experiment_id)
    request = Request.of(idempotency_key, ["fork", found.number, dict(changes), checkpoint])
    key = uuid.uuid4().hex if request is None else request.key
    if store.commands.sent_with(record.id, request):
        return key
    name = checkpoint or (found.checkpoint or {}).get("id")
    if name is None:
        raise Conflict(f"{trial} has no checkpoint to start from")
    source = store.trials.checkpoint(name)
    if (source.experiment, source.trial) != (record.public_id, found.number):
        raise SpecError(f"{name} is not a checkpoint of {trial}", "/checkpoint_id")
    if source.state != "ready":
        raise Conflict(f"{name} cannot be used: it is {source.state}")
    if _is_at_end(record, source.step):
        end = _last_iteration(record)
        where = f"{name} is from iteration {source.step}, and every trial ends at max_t, which is {end:g}"
        raise Conflict(f"{where}: start from an earlier checkpoint, if there is one")
    params = _changed(record, found, changes)
    words = ", ".join(f"{key}={value!r}" for key, value in changes.items()) or "no changes"
    reason = f"forked by a user from trial {found.number} at iteration {source.step} with {words}"
    point = {"params": params, "checkpoint": name, "parent": found.number, "key": key}
    _ask(store, record, [{**point, "space_revision": record.spec.space_revision}], reason, request)
    return key


MOST_NEW = 100
"""The number of newest trials that `asked_by` searches."""


def asked_by(store: Store, experiment_id: int, key: str) -> TrialRecord | None:
    """Return the trial that was requested with this key, with its segments; None if it has not started yet."""
    newest = store.trials.newest(experiment_id, MOST_NEW)
    found = next((trial for trial in newest if trial.tags.get("asked_by") == key), None)
    return None if found is None else store.trials.get(found.public_id)


def pin(store: Store, checkpoint: str, pinned: bool) -> CheckpointRecord:
    """Pin a checkpoint, so that the checkpoint policy does not delete it, or unpin it.

    Raises:
        NotFound: there is no such checkpoint.
        Conflict: the checkpoint has been deleted.
    """
    found = store.trials.checkpoint(checkpoint)
    if pinned != found.pinned:
        store.trials.pin(store.experiments.get(found.experiment).id, checkpoint, pinned)
        found = store.trials.checkpoint(checkpoint)
    if pinned and not found.pinned:
        raise Conflict(f"{checkpoint} has been deleted")
    return found


def trial_actions(trial: TrialRecord, record: ExperimentRecord) -> list[TrialAction]:
    """Return the actions that the state of a trial allows. `record` is the record of the trial's experiment.

    `fork` means a fork from the newest checkpoint. `checkpoint_actions` returns the actions of each checkpoint.
    """
    found: list[TrialAction] = [
        cast("TrialAction", verb.name)
        for verb in TRIAL_VERBS.values()
        if trial.state not in {*verb.done, *verb.refused} and (verb.name != "retry" or can_take_trials(record))
    ]
    if trial.checkpoint is not None and can_take_trials(record) and not _is_at_end(record, trial.checkpoint["step"]):
        found.append("fork")
    return found


def checkpoint_actions(checkpoint: CheckpointRecord, record: ExperimentRecord) -> list[CheckpointAction]:
    """Return the actions that the state of a checkpoint allows. `record` is the record of the checkpoint's experiment."""
    found: list[CheckpointAction] = []
    if checkpoint.state == "ready" and can_take_trials(record) and not _is_at_end(record, checkpoint.step):
        found.append("fork")
    if checkpoint.pinned:
        found.append("unpin")
    elif checkpoint.state != "deleted":
        found.append("pin")
    return found


def _is_at_end(record: ExperimentRecord, iteration: int) -> bool:
    """Return True if a trial that starts from this iteration would have nothing left to train."""
    end = _last_iteration(record)
    return end is not None and iteration >= end


def _last_iteration(record: ExperimentRecord) -> float | None:
    """Return the training_iteration at which every trial ends; None if there is no max_t, or max_t is in another unit."""
    spec = record.spec
    scheduler = spec.resolved.get("scheduler") or spec.scheduler
    if {spec.time_attr, scheduler.get("time_attr") or "training_iteration"} != {"training_iteration"}:
        return None
    return min((end for end in (spec.max_t, scheduler.get("max_t")) if end is not None), default=None)


def _changed(record: ExperimentRecord, trial: TrialRecord, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a trial with the changes applied. Params of branches that are no longer chosen are left out.

    Raises:
        SpecError: the changes do not fit the search space; or the trial's configuration is from an earlier space and does not
            lie in the current one, and the changes do not give the missing values.
    """
    revisions = Revisions.of(record.spec)
    space = revisions.present
    carried = revisions.carried(trial.params, trial.space_revision)
    params = {**carried.params, **changes}
    active = {p.path: on for p, on in zip(space.parameters, space.active(_known(space, params)), strict=True)}
    kept = {path: value for path, value in params.items() if path in changes or active.get(path, True)}
    checked = space.check(kept, "/params")
    if not carried.whole:
        on = zip(space.parameters, space.active(checked), strict=True)
        if missing := [p.path for p, active in on if active and p.path not in checked]:
            message = (
                f"trial {trial.number} is from an earlier search space (revision {trial.space_revision}), and its configuration "
                f"does not lie in the present one: give a value for {', '.join(missing)}"
            )
            raise SpecError(message, "/params")
    return checked


def _known(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out values outside their domains, which `Space.check` reports: conditions cannot be checked with them."""
    valid = {p.path: p for p in space.parameters}
    return {path: value for path, value in params.items() if path in valid and valid[path].contains(value)}


def _ask(
    store: Store,
    record: ExperimentRecord,
    points: Sequence[Mapping[str, Any]],
    reason: str,
    request: Request | None = None,
) -> None:
    """Enqueue trials. Also add a command to continue, because the experiment can end before its driver reads the commands."""
    check_verb("continue", record)
    store.experiments.change(
        record.id,
        {},
        commands=[
            ("enqueue", reason, {"points": list(points)}),
            ("continue", "by a user, who enqueued more trials", FOR_TRIALS),
        ],
        adopt=True,
        request=request,
    )
