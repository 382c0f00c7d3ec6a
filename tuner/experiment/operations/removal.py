"""Delete an experiment and everything that belongs to it: rows, checkpoints, logs."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import CheckpointError, Conflict, NotFound, StoreError, TunerError
from tuner.experiment.code.local_packages import Packages
from tuner.experiment.operations.verbs import act
from tuner.store import ExperimentRecord, Store
from tuner.store.commands import DELETION
from tuner.store.records import CheckpointRecord
from tuner.trials.checkpoints.storage import is_local, join, nothing_around, place, split_query

log = logging.getLogger(__name__)

KILL_S = 30.0
"""A deletion waits up to this many seconds for a driver to stop its ranks and release the experiment."""

LOOK_S = 0.1

RENEW_S = 1.0
"""The time between two renewals of a deletion's lease while it deletes files, in seconds."""

QUIET_S = 5.0
"""A deletion that does not renew its lease for this many seconds was interrupted, most likely."""

_NO_STORAGE = re.compile(r"Bucket '.*' not found|Unrecognized filesystem type")
"""Matches the errors of pyarrow for a bucket that has been deleted, and for a kind of storage that does not exist."""


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
            setting was another one then, are deleted, too, unless they belong to an original of which this is a copy: they are
            in another home, or `storage` has a copy of one of them.
        home: the folder with the logs of all experiments, and with the positions that scripts' callbacks have reached.
        force: True to kill the experiment first if it has not ended.
        revision: if given, the experiment is deleted only if it is at this revision.
        poke: a function that wakes the driver after a command.
        wait_s: the seconds that a driver may take to release the experiment, or another call to delete it.

    Raises:
        NotFound: there is no such experiment.
        Conflict: the experiment has not ended, its driver does not release it, another call is still deleting it, or the
            storage of its checkpoints does not answer or is not mounted. The experiment is then as it was, except that
            it may have been killed, and that checkpoints may be gone. A deletion that was interrupted can be repeated at once.
    """
    record = store.experiments.get(experiment)
    store.experiments.check_revision(record, revision)
    _check_mounted(store, record, storage, home)
    taken = _take(store, record, force, poke, wait_s)
    if taken is None:
        return  # another call has deleted it meanwhile
    record, killed = taken
    try:
        with _renewed(store, record.id):
            for folder in _folders(store, record, storage, home):
                _remove_checkpoints(folder)
    except Conflict as error:
        store.experiments.give_back(record)
        if killed:
            raise Conflict(f"{experiment} has been killed and is {record.state} now, but {error}") from error
        raise
    if not store.experiments.keep_seized(record.id, forever=True):
        with contextlib.suppress(NotFound):  # another call was faster
            now = store.experiments.get(experiment)
            raise Conflict(
                f"{experiment} was continued while its checkpoints were being deleted, and is {now.state} now"
            )
    for kind in ("logs", "callbacks"):
        shutil.rmtree(home / kind / experiment, ignore_errors=True)
    store.webhooks.collect(deleted=record.id)  # its end, and other events that no service has seen yet
    with contextlib.suppress(NotFound):  # another call was faster
        store.experiments.remove(record.id)
    try:
        Packages(store).prune()
    except (OSError, TunerError) as error:
        log.warning(
            "packages of %s could not be deleted; the service tries again within an hour: %s", experiment, error
        )


def _take(
    store: Store, record: ExperimentRecord, force: bool, poke: Callable[[], None], wait_s: float
) -> tuple[ExperimentRecord, bool] | None:
    """Wait until the experiment has ended and nobody holds it, and seize it. Kill it first if `force` is true.

    Return the experiment as it was before, and whether it was killed; None if another call has deleted it meanwhile.
    """
    experiment = record.public_id
    until, killed = time.monotonic() + wait_s, 0
    # the lease of another call that deletes the experiment, and since when it has not been renewed
    lease, unchanged_since = (0, 0.0), 0.0
    if _is_being_deleted(record):
        until = max(until, time.monotonic() + 2 * QUIET_S)
    while True:
        if not record.state.ended and not force:
            forced = "force the deletion (--force, force=true)"
            raise Conflict(f"{experiment} is {record.state}; end it before you delete it, or {forced}")
        if _is_being_deleted(record):
            found = (record.driver_epoch, record.lease_until or 0.0)
            if lease != found:
                lease, unchanged_since = found, time.monotonic()
            elif time.monotonic() >= unchanged_since + QUIET_S and store.experiments.seize(
                record.id, record.driver_epoch
            ):
                break
        elif not _is_driven(record):
            if store.experiments.seize(record.id, record.driver_epoch):
                break
        elif not record.state.ended and record.driver_epoch != killed:
            killed = record.driver_epoch
            with contextlib.suppress(Conflict):  # it has ended just now
                act(store, "kill", experiment)
            poke()
        if time.monotonic() >= until:
            if _is_being_deleted(record):
                raise Conflict(
                    f"another call is still deleting {experiment}, which takes long if it has many checkpoints"
                )
            raise Conflict(f"the driver of {experiment} has not released it yet; try again")
        time.sleep(LOOK_S)
        try:
            record = store.experiments.get(experiment)
        except NotFound:
            return None
    return record, bool(killed)


def _folders(store: Store, record: ExperimentRecord, storage: str, home: Path) -> list[str]:
    """Return the folders of the experiment in each storage that has a checkpoint of it, and in its present storage.

    Leave out the folders of an original of which this home or this storage is a copy, and those that agents have named on hosts
    of their choice. The present folder is the last, so that a deletion that is repeated still finds the copies there.
    """
    present = join(record.spec.checkpoint.storage or storage, record.public_id)
    found: dict[str, bool] = {}  # whether a folder is that of an original
    for checkpoint in store.trials.checkpoints(record.id):
        base, query = split_query(checkpoint.uri)
        below, *names = base.rsplit("/", 2)  # STORAGE/EXPERIMENT/TRIAL/ITERATION
        folder = below + query
        if record.spec.executor == "agents" and not is_local(folder):
            continue
        if below.endswith(f"/{record.public_id}") and folder != present and not found.get(folder):
            found[folder] = _is_in_another_home(folder, home) or _is_on_disk(join(present, *names))
    return [*(folder for folder, original in found.items() if not original), present]


def _is_in_another_home(folder: str, home: Path) -> bool:
    """Return whether a folder of an experiment is in the folder `checkpoints` of another home that has a database."""
    if not is_local(folder):
        return False
    try:
        other = Path(place(folder).path).parent.parent
        os.stat(other / "tuner.db")
    except CheckpointError:  # the path has a variable that is set only on the nodes
        return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True  # the home of another user
    except OSError as error:
        raise _refusal(folder, error) from error
    return other.resolve() != home.resolve()


def _is_on_disk(uri: str) -> bool:
    with contextlib.suppress(CheckpointError):  # the path has a variable that is set only on the nodes
        return is_local(uri) and os.path.lexists(place(uri).path)
    return False


def _check_mounted(store: Store, record: ExperimentRecord, storage: str, home: Path) -> None:
    """Raise Conflict if processes of this machine have saved checkpoints on a disk or a share that is not mounted now."""
    saved = store.trials.checkpoints(record.id)
    if record.driver_owner == DELETION or not any(_is_of_here(one, record, storage) for one in saved):
        return
    *others, present = _folders(store, record, storage, home)
    with contextlib.suppress(CheckpointError):  # a path has a variable that is set only on the nodes
        if any(os.path.lexists(place(one).path) for one in (*others, present) if is_local(one)):
            return
        try:
            root = nothing_around(present)
        except OSError as error:
            raise _refusal(present, error) from error
        if root is not None and not Path(root).is_relative_to(home.absolute()):  # the home is there
            raise Conflict(
                f"the checkpoints of {record.public_id} cannot be deleted, since there is nothing in {root}: mount its disk or "
                f"share, or create the folder {place(present).path} if they have been deleted already"
            )


def _is_of_here(checkpoint: CheckpointRecord, record: ExperimentRecord, storage: str) -> bool:
    """Return whether a checkpoint was saved on a disk or share of this machine. Agents also save on their own disks."""
    if checkpoint.state != "ready" or checkpoint.node is not None or not is_local(checkpoint.uri):
        return False
    present = join(record.spec.checkpoint.storage or storage, record.public_id)
    return record.spec.executor != "agents" or checkpoint.uri.startswith(f"{present}/")


def _remove_checkpoints(uri: str) -> None:
    try:
        where = place(uri)
        where.remove()
        if where.remote is None and os.path.lexists(real := os.path.realpath(where.path)):
            shutil.rmtree(real)  # says why it is still there; refuses a symbolic link
        if where.remote is None and os.path.islink(where.path):
            os.unlink(where.path)
    except FileNotFoundError:
        pass  # another call has deleted the folder
    except (CheckpointError, OSError) as error:
        if isinstance(error, CheckpointError) and (is_local(uri) or _NO_STORAGE.match(str(error.__cause__))):
            return  # the path has a variable that is set only on the nodes, or there is no such storage
        raise _refusal(uri, error) from error


def _refusal(uri: str, error: Exception) -> Conflict:
    return Conflict(
        f"the checkpoints in {uri} cannot be deleted: {error}; try again later, delete them yourself first, "
        "or hide the experiment with `tuner archive`"
    )


@contextmanager
def _renewed(store: Store, experiment: int) -> Iterator[None]:
    """Renew the lease of a deletion while the block deletes files, which may take hours in a bucket."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(RENEW_S):
            with contextlib.suppress(StoreError):  # the next attempt is soon
                store.experiments.keep_seized(experiment)

    thread = threading.Thread(target=renew, name="deletion", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _is_being_deleted(record: ExperimentRecord) -> bool:
    """Return whether a deletion holds the experiment and has deleted no row yet. It may have been interrupted."""
    return record.driver_owner == DELETION and record.lease_until not in (None, math.inf)


def _is_driven(record: ExperimentRecord) -> bool:
    """Return True if a driver holds the experiment's lease. A lease held by an earlier deletion does not count."""
    is_held = record.driver_owner not in (None, DELETION)
    return is_held and (record.lease_until or 0.0) > time.time()
