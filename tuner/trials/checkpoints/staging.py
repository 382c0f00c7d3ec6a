"""Directories for the contents of checkpoints that are not saved yet, and their removal after a process was killed.

If the storage is on a disk, they are in its folder `.staging`, from where moving the contents to their final location
is quick. Otherwise they are in the *spool*, a folder in the temporary directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile

from tuner.errors import CheckpointError
from tuner.trials.checkpoints.checkpoints import is_saved_or_downloaded
from tuner.trials.checkpoints.storage import copy_tree, join, place, private_folder, replace_links


def take_over(source: str, staging: str, locks: list[int]) -> str | None:
    """Move the contents of `source` to `staging` if `source` is in the temp directory, else copy them.

    The contents of a saved or downloaded checkpoint are always copied, since others still need them.

    A move leaves `source` as an empty directory, for the code that created it to delete. If `staging` is on another
    filesystem, the contents are moved to a new directory in the spool, from which the saver copies them in the
    background. Return that directory, or None if there is none. Its lock is added to `locks`.
    """
    if not os.path.isdir(source):
        raise CheckpointError(
            f"a checkpoint must be a directory, or a callable that fills one; there is no directory at {source}"
        )
    real = os.path.realpath(source)
    is_temporary = real.startswith(os.path.realpath(tempfile.gettempdir()) + os.sep)
    if not is_temporary or is_saved_or_downloaded(real):
        copy_tree(source, staging)
        return None
    replace_links(real)
    target, aside = staging, None
    for entry in os.listdir(source):
        origin = os.path.join(source, entry)
        try:
            os.rename(origin, os.path.join(target, entry))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            if aside is None:
                target = aside = os.path.join(spool(), f"{os.path.basename(staging)}.taken")
                shutil.rmtree(aside, ignore_errors=True)
                locks.append(make_locked(aside))
            shutil.move(origin, os.path.join(target, entry))
    return aside


def spool() -> str:
    """Return the folder in the temporary directory for files that wait to be uploaded or copied to another filesystem.

    Each process holds locks on its own directories there.
    """
    return private_folder("tuner-spool")


def sweep_spool() -> None:
    """Delete what killed processes have left in this node's spool."""
    try:
        home = spool()
    except OSError:  # the temporary directory is full, or cannot be written to
        return
    for name in os.listdir(home):
        with contextlib.suppress(OSError):  # another process has locked it, or has already deleted it
            folder = os.open(os.path.join(home, name), os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # If another process has just deleted it, there may be a new directory of this name, which is in use.
                if os.fstat(folder).st_nlink:
                    shutil.rmtree(os.path.join(home, name))
            finally:
                os.close(folder)


def clear(storage: str, trial_number: int, segment_id: str) -> None:
    """Delete the parts of unsaved checkpoints that a segment has left on this node. Its processes must have exited."""
    sweep_spool()
    home = place(join(storage, ".staging"))
    if not home.local:
        return
    for name in os.listdir(home.path) if os.path.isdir(home.path) else []:
        if name.startswith(f"{trial_folder(trial_number)}.{segment_id}."):
            shutil.rmtree(os.path.join(home.path, name), ignore_errors=True)


def clear_earlier(home: str, trial: str, segment_id: str) -> None:
    """Delete what earlier segments of a trial, whose processes were killed, have left in this staging directory.

    trial: the name of the trial's folder.
    """
    for name in os.listdir(home) if os.path.isdir(home) else []:
        if name.startswith(f"{trial}.") and not name.startswith(f"{trial}.{segment_id}."):
            shutil.rmtree(os.path.join(home, name), ignore_errors=True)


def trial_folder(trial_number: int) -> str:
    """Return the name of the folder with a trial's checkpoints."""
    return f"trial_{trial_number:05d}"


def make_locked(path: str) -> int:
    """Create a directory, and return a descriptor of it. `sweep_spool` spares the directory while the descriptor is open."""
    while True:
        os.makedirs(path, exist_ok=True)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # the directory was deleted before it could be locked
            continue
        with contextlib.suppress(OSError):  # on a filesystem without locks, nothing is deleted
            fcntl.flock(folder, fcntl.LOCK_SH)
        if os.fstat(folder).st_nlink:
            return folder
        os.close(folder)
