"""Delete an experiment and everything that belongs to it: rows, checkpoints, logs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tuner.errors import CheckpointError, Conflict, NotFound, TunerError
from tuner.experiment.code.local_packages import Packages
from tuner.experiment.operations.verbs import act
from tuner.store import ExperimentRecord, Store
from tuner.store.commands import DELETION
from tuner.trials.checkpoints.storage import is_local, join, nothing_around, place, split_query

log = logging.getLogger(__name__)

KILL_S = 30.0
"""A deletion waits up to this many seconds for a driver to stop its ranks and release the experiment."""

LOOK_S = 0.1

_NO_BUCKET = re.compile(r"Bucket '.*' not found")
"""Matches the error of pyarrow if it looks for the region of a bucket that has been deleted."""


def delete_experiment(
    store: Store,
    experiment: str,
    *,
    storage: str,
    home: Path,
    force: bool = False,
    revision: int | None = None,
    poke: Callable[[], None] = lambda: None,
    wait_s: float = KILL_S,
) -> None:
    """Delete an experiment, its checkpoints, its logs, and packages of local directories that no other experiment uses.

    Checkpoints and logs on the disks of other nodes are not deleted, because this process cannot reach them.

    Args:
        store: the database.
        experiment: the public id of the experiment.
        storage: where checkpoints are stored, unless the spec says otherwise. Those that were stored elsewhere, because the
            setting was another one then, are deleted, too.
        home: the folder with the logs of all experiments, and with the positions that scripts' callbacks have reached.
        force: True to kill the experiment first if it has not ended.
        revision: if given, the experiment is deleted only if it is at this revision.
        poke: a function that wakes the driver after a command.
        wait_s: the seconds that a driver may take to release the experiment.

    Raises:
        NotFound: there is no such experiment.
        Conflict: the experiment has not ended, its driver does not release it, or the storage of its checkpoints does not
            answer or is not mounted. A deletion that was interrupted can be repeated at once.
    """
    record = store.experiments.get(experiment)
    store.experiments.check_revision(record, revision)
    _check_mounted(store, record, storage, home)
    until, killed = time.monotonic() + wait_s, 0
    while True:
        if not record.state.ended and not force:
            forced = "force the deletion (--force, force=true)"
            raise Conflict(f"{experiment} is {record.state}; end it before you delete it, or {forced}")
        if not _is_driven(record):
            if store.experiments.seize(record.id, record.driver_epoch):
                break
        elif not record.state.ended and record.driver_epoch != killed:
            killed = record.driver_epoch
            with contextlib.suppress(Conflict):  # it has ended just now
                act(store, "kill", experiment)
            poke()
        if time.monotonic() >= until:
            raise Conflict(f"the driver of {experiment} has not released it yet; try again")
        time.sleep(LOOK_S)
        record = store.experiments.get(experiment)
    for folder in _folders(store, record, storage):
        _remove_checkpoints(folder, experiment)
    for kind in ("logs", "callbacks"):
        shutil.rmtree(home / kind / experiment, ignore_errors=True)
    with contextlib.suppress(NotFound):  # another call was faster
        store.experiments.remove(record.id)
    try:
        Packages(store).prune()
    except (OSError, TunerError) as error:
        log.warning(
            "packages of %s could not be deleted; the service tries again within an hour: %s", experiment, error
        )


def _folders(store: Store, record: ExperimentRecord, storage: str) -> list[str]:
    """Return the folders of the experiment in its present storage and in each storage that has a checkpoint of it."""
    found = {join(record.spec.checkpoint.storage or storage, record.public_id): None}
    for checkpoint in store.trials.checkpoints(record.id):
        base, query = split_query(checkpoint.uri)
        folder = base.rsplit("/", 2)[0]  # STORAGE/EXPERIMENT/TRIAL/ITERATION
        if folder.endswith(f"/{record.public_id}"):
            found[folder + query] = None
    return list(found)


def _check_mounted(store: Store, record: ExperimentRecord, storage: str, home: Path) -> None:
    """Raise Conflict if processes of this machine have saved checkpoints on a disk or a share that is not mounted now."""
    saved = store.trials.checkpoints(record.id)
    here = any(one.state == "ready" and one.node is None and is_local(one.uri) for one in saved)
    if record.driver_owner == DELETION or not here:
        return
    folder, *others = _folders(store, record, storage)
    with contextlib.suppress(CheckpointError):  # a path has a variable that is set only on the nodes
        if any(os.path.lexists(place(one).path) for one in (folder, *others) if is_local(one)):
            return
        root = nothing_around(folder)
        if root is not None and not Path(root).is_relative_to(home.absolute()):  # the home is there
            raise Conflict(
                f"the checkpoints of {record.public_id} cannot be deleted, since there is nothing in {root}: mount its disk or "
                f"share, or create the folder {place(folder).path} if they have been deleted already"
            )


def _remove_checkpoints(uri: str, experiment: str) -> None:
    try:
        where = place(uri)
        where.remove()
        if where.remote is None and os.path.lexists(where.path):
            shutil.rmtree(where.path)  # says why it is still there
    except FileNotFoundError:  # another call has deleted the folder
        pass
    except (CheckpointError, OSError) as error:
        if isinstance(error, CheckpointError) and (is_local(uri) or _NO_BUCKET.match(str(error.__cause__))):
            return  # the path has a variable that is set only on the nodes, or the bucket no longer exists
        raise Conflict(
            f"the checkpoints of {experiment} in {uri} cannot be deleted: {error}; try again later"
        ) from error


def _is_driven(record: ExperimentRecord) -> bool:
    """Return True if a driver holds the experiment's lease. A lease held by an earlier deletion does not count."""
    is_held = record.driver_owner not in (None, DELETION)
    return is_held and (record.lease_until or 0.0) > time.time()
