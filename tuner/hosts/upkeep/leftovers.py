"""Find what earlier hosts have left behind: files of checkpoints, objects, and logs that were not sent."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace

from tuner.domain.segments import CheckpointInfo
from tuner.domain.states import SegmentState
from tuner.errors import CheckpointError
from tuner.hosts.driven import Driven
from tuner.hosts.measures.logs import LogKeeper, Owner
from tuner.store import Store
from tuner.trials.checkpoints import checkpoints, objects
from tuner.trials.checkpoints.storage import Place, place
from tuner.trials.groups.segments.segment_run import LogFile

log = logging.getLogger(__name__)


def sweep_checkpoints(store: Store, driven: Driven) -> None:
    """Delete checkpoint files that no committed report refers to, because the ranks or the driver were killed."""
    if _place(driven) is not None:
        rows = store.trials.checkpoints(driven.record.id)
        checkpoints.sweep(driven.groups.storage, {row.uri for row in rows if row.state != "deleted"})


def sweep_after(store: Store, driven: Driven) -> None:
    """Delete the parts of unsaved checkpoints that the segments of an ended experiment have left.

    This is done only if a segment has failed or was lost, because large storages are slow to list.
    """
    if driven.record.spec.executor == "agents":  # an agent may be writing a checkpoint now
        return
    failed = (SegmentState.FAILED, SegmentState.LOST)
    if any(one.state in failed for trial in driven.core.trials for one in trial.segments):
        sweep_checkpoints(store, driven)


def _place(driven: Driven) -> Place | None:
    """Return where the experiment's checkpoints are, or None if the path has a variable that is set only on the nodes."""
    try:
        return place(driven.groups.storage)
    except CheckpointError:
        return None


def ended_uploads(driven: Driven) -> list[CheckpointInfo]:
    """Return the checkpoints whose upload was complete when their driver exited, but which the log does not show as ready.

    Without this, the trial would start from an older checkpoint, and nobody would delete the files of this one.
    """
    found = [info for _, _, info in driven.core.experiment.checkpoints.uploading()]
    return [replace(info, ready=True) for info in found if checkpoints.is_committed(info.uri)]


async def sweep_objects(store: Store, storage: str, database_url: str) -> None:
    """Delete the objects stored by `tuner.with_parameters` whose experiments have been deleted."""
    try:
        await asyncio.to_thread(objects.sweep, storage, database_url, lambda: store.code.functions(objects.SUFFIX))
    except Exception:  # the objects are deleted next time
        log.warning("objects that came with training functions could not be deleted", exc_info=True)


async def find_logs(store: Store, logs: LogKeeper, driven: Driven) -> None:
    """Start reading from log files the output that ranks had not sent when they died with an earlier host."""
    files: dict[Owner, list[LogFile]] = {}
    names: dict[Owner, str] = {}
    for found in await asyncio.to_thread(store.logs.unfinished, driven.record.id):
        if logs.is_closing(found.segment_id):
            continue
        owner = Owner(driven.record.id, found.trial, found.segment)
        path = os.path.join(driven.groups.log_dir, found.segment_id, f"rank{found.rank}.log")
        files.setdefault(owner, []).append(LogFile(found.rank, found.node, path))
        names[owner] = found.segment_id
    for owner, name in names.items():
        logs.begin(name, owner)
        logs.end(name, files[owner], gone=asyncio.sleep(0))
