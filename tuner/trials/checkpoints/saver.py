"""Save a rank's checkpoints to storage, in a background thread.

The training thread only hands over a directory: it renames the directory if it is in the temp directory, else it copies
the files. The saver's thread hashes the files and, if the storage is a URI, uploads them. The saver of rank 0 then asks
every other rank for its shard, which is its part of the same checkpoint, and commits the checkpoint. If the storage is
on a disk, rank 0 moves all shards from the ranks' staging directories to their final location, and copies shards from
the disks of other nodes. If several ranks save a file with the same name, the lowest rank's file is kept.

An upload may take minutes, so it may continue after its segment has ended (`leave`), while the process already runs the next
trial. The driver then asks for the outcome of the upload (`outcome`). Saving to a disk is quick, so the end of a segment waits
for it.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import itertools
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tuner.domain.events import CheckpointInfo
from tuner.domain.keys import checkpoint_id
from tuner.domain.segments import IN_SAVE, NO_SPACE, UNWRITABLE
from tuner.errors import CheckpointError, CheckpointUnreachable, text_of
from tuner.plurals import counted
from tuner.trials.checkpoints import checkpoints
from tuner.trials.checkpoints.checkpoints import Checkpoint, Source
from tuner.trials.checkpoints.staging import clear_earlier, make_locked, spool, sweep_spool, take_over, trial_folder
from tuner.trials.checkpoints.storage import Place, is_local, is_passing, join, move_into, place, replace_links, walk
from tuner.trials.messages.channel import ChannelClient, ChannelServer, PeerLost

log = logging.getLogger(__name__)

T = TypeVar("T")
Files = dict[str, tuple[int, str]]
Moment = tuple[int, bool]
"""Identifies a checkpoint within a segment: (report_no, whether the checkpoint was saved after the last report)."""

Bring = Callable[[str, str, Files, str], None]
"""Called with (path, node, files, directory): moves the files from `path` on `node` to `directory`, and removes `path`."""

FULL_BYTES = 2**16
"""The bytes below which a disk counts as full, if a checkpoint could not be saved."""

# Seconds that rank 0 waits for another rank to reach the checkpoint's report, and that the other rank takes at most to begin
# the segment.
_SHARD_TIMEOUT_S = 600.0

RETRY_S = 600.0
"""Seconds for which saving is tried again while the storage is not available, as when it answers 503.

They count from the first failure since something was saved, so all checkpoints that wait are given up at the same time.
"""
MOST_WAITING = 4
"""While the storage is not available, at most this many checkpoints wait on the disk. Then the training waits, too."""
_LOOK_S = 0.05
_RETRY_WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # the last one is repeated


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a checkpoint."""

    files: Files
    node: str | None = None  # Ray's id of that rank's node
    # the directory with the files on that rank's node; None if the files are already in their final location
    staging: str | None = None


class _State(enum.Enum):
    """A rank's answer if rank 0 asks for a shard that is not saved yet."""

    # The rank prepares the segment: it imports modules, or copies the checkpoint that it starts from.
    STARTING = enum.auto()
    # The rank has begun the segment.
    TRAINING = enum.auto()
    # The rank has made the checkpoint's report, and saves its shard, which may take arbitrarily long.
    SAVING = enum.auto()
    # The rank has failed before it made the checkpoint's report.
    FAILED = enum.auto()


class _RankFailed(CheckpointError):
    """A rank has failed before it made the checkpoint's report. Its own error says why, and ends the segment."""


@dataclass(slots=True)
class _Job:
    id: str
    moment: Moment
    iteration: int
    uri: str
    staging: str
    elsewhere: str | None = None  # a directory in the spool whose contents still have to be copied to `staging`
    taken_at: float = 0.0  # when `take` was called, by the monotonic clock
    took_s: float = 0.0
    size: int = 0  # bytes of this rank's part
    locks: list[int] = field(default_factory=list)  # descriptors of its directories in the spool; see `spool`

    def drop(self) -> None:
        """Delete the directories of this checkpoint, which will not be saved."""
        for folder in filter(None, (self.staging, self.elsewhere)):
            shutil.rmtree(folder, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        """Unlock the directories in the spool."""
        while self.locks:
            os.close(self.locks.pop())


class Saver:
    """Saves the checkpoints of one rank in one segment. Call `take` and `drain` in the training thread.

    durable: True if checkpoints on a disk are flushed to it when they are committed, to survive a power failure.
    """

    def __init__(
        self,
        *,
        storage: str,
        segment_id: str,
        trial_number: int,
        rank: int,
        world_size: int,
        server: ChannelServer | None = None,
        client: ChannelClient | None = None,
        node: str | None = None,
        bring: Bring | None = None,
        durable: bool = False,
        committed: Callable[[CheckpointInfo], None],
    ) -> None:
        self._storage = storage
        self._segment = segment_id
        self._trial = trial_folder(trial_number)
        self._rank, self._world_size = rank, world_size
        self._server, self._client = server, client
        self.node = node  # Ray's id of this node
        self._bring = bring
        self._durable = durable
        self._committed = committed
        self.patience_s = _SHARD_TIMEOUT_S
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._progress = threading.Condition()
        self._passed: Moment = (0, False)  # this rank adds no more shards to checkpoints up to this one
        # This rank's shards; a message if saving one failed; None while it is being saved.
        self._shards: dict[Moment, Shard | str | None] = {}
        self._finished = False
        self._failed = False  # whether the training function has raised an exception on this rank
        self._unsaved: dict[str, _Job] = {}  # jobs by checkpoint id, until the driver knows of the checkpoint
        self._telling = False  # whether the driver is being told of a checkpoint
        self._left = False  # whether the segment has ended, so that the driver asks for the rest
        self._outcomes: dict[str, CheckpointInfo | str] = {}  # of the checkpoints that were saved after that
        self._abandoned = ""  # why no further checkpoint may be committed
        self._unavailable_since: float | None = None  # time.monotonic() of the storage's first failure in a row
        # time.monotonic() since when rank 0 waits for a rank that has not made a checkpoint's report; None if it does not
        self._waits_since: float | None = None

    def take(self, source: Source, report_no: int, iteration: int, *, at_end: bool = False) -> CheckpointInfo | None:
        """Move or copy the contents of a checkpoint to the staging directory, and let the background thread save it.

        On rank 0, return the description of the checkpoint, which is not saved yet; on other ranks, return None. If
        saving fails later, the next call to `take` or `drain` raises the error.
        """
        self._wait_for_storage()
        self._raise()
        begun = time.monotonic()
        name = f"iteration_{iteration:08d}_{checkpoint_id(self._segment, report_no)[-8:]}"
        uri = join(self._storage, self._trial, name)
        local = is_local(uri)
        if self._thread is None:
            with contextlib.suppress(CheckpointUnreachable):  # the saver's thread tries again
                place(uri)  # raises an error if the URI is wrong
        home = place(join(self._storage, ".staging")).path if local else spool()
        moment = (report_no, at_end)
        staging = os.path.join(home, f"{self._trial}.{self._segment}.{name}.rank{self._rank}.{os.getpid()}")
        job = _Job(checkpoint_id(self._segment, report_no), moment, iteration, uri, staging)
        shutil.rmtree(job.staging, ignore_errors=True)
        if self._thread is None:
            sweep_spool()
        if self._thread is None and local:
            clear_earlier(home, self._trial, self._segment)
        if local:
            with self._storing():
                os.makedirs(job.staging)
        else:
            job.locks.append(make_locked(job.staging))
        self._note(moment, None)
        try:
            if isinstance(source, Checkpoint):
                with source.as_directory() as folder:
                    job.elsewhere = take_over(folder, job.staging, job.locks)
            elif callable(source):
                try:
                    source(job.staging)
                except Exception as error:
                    error.add_note(IN_SAVE)
                    _note_full_disk(error, job.staging)
                    raise
                replace_links(job.staging)
            elif isinstance(source, str | os.PathLike):
                job.elsewhere = take_over(os.fspath(source), job.staging, job.locks)
            else:
                raise CheckpointError(
                    f"a checkpoint must be a directory, or a callable that fills one, not {type(source).__name__}: save the "
                    "state to a file with torch.save or pickle, in the directory that the callable gets"
                )
            lies = job.elsewhere or job.staging
            size = job.size = sum(os.path.getsize(os.path.join(lies, file)) for file in walk(lies))
        except BaseException as error:
            job.drop()  # if the disk is full, this makes room for the next attempt
            self._note(moment, f"{type(error).__name__}: {text_of(error)}")
            raise
        job.taken_at = time.monotonic()
        job.took_s = job.taken_at - begun
        with self._progress:
            self._passed = moment
            self._unsaved[job.id] = job
            self._progress.notify_all()
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tuner-saver", daemon=True)
            self._thread.start()
        return self._info(job, size, ready=False) if self._rank == 0 else None

    def passed(self, report_no: int) -> None:
        """Record that this rank has made this report without a checkpoint, so that rank 0 does not wait for one."""
        if self._world_size > 1:
            with self._progress:
                self._passed = (report_no, False)
                self._progress.notify_all()

    def drain(self, timeout: float | None = None, late_s: float | None = None) -> None:
        """Wait until all checkpoints that were passed to `take` are saved. Raise CheckpointError if saving one failed.

        timeout: the seconds to wait at most.
        late_s: the seconds to wait at most for a rank that has not made the report to which a checkpoint belongs.
        """
        if self._thread is not None:
            self._jobs.put(None)
            self._join(self._thread, timeout, late_s)
            self._thread = None
        with self._progress:
            self._finished = True
            self._progress.notify_all()
        self._raise()

    def _join(self, thread: threading.Thread, timeout: float | None, late_s: float | None) -> None:
        if late_s is None:
            thread.join(timeout)
            return
        begun = time.monotonic()
        while thread.is_alive() and (timeout is None or time.monotonic() < begun + timeout):
            since = self._waits_since
            if since is not None and time.monotonic() >= max(begun, since) + late_s:
                return
            thread.join(_LOOK_S)

    def fail(self) -> None:
        """Let no checkpoint be committed whose report this rank, which has failed, has not made: its part is missing."""
        self._failed = True

    @property
    def uploads(self) -> bool:
        """Return whether checkpoints are uploaded, rather than saved to a disk."""
        return not is_local(self._storage)

    def leave(self, patience_s: float | None) -> list[CheckpointInfo]:
        """End the segment on this rank. Uploads that take longer than `patience_s` seconds continue.

        If `patience_s` is None, wait for all of them. On rank 0, return the descriptions of the checkpoints that are
        not saved yet; `outcome` tells how saving each of them ends. On other ranks, return an empty list. Raise
        CheckpointError if saving one has failed.
        """
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(patience_s)
        with self._progress:
            self._progress.wait_for(lambda: not self._telling)  # so that the driver is not told of a checkpoint twice
            self._left = self._finished = True
            self._progress.notify_all()
            rest = list(self._unsaved.values())
            self._committed = _not_told  # release what the function refers to
        self._raise()
        return [self._info(job, job.size, ready=False) for job in rest] if self._rank == 0 else []

    def outcome(self, checkpoint: str) -> CheckpointInfo | str:
        """Wait until a checkpoint that `leave` returned is saved or lost. Return it, or the reason why it could not be saved."""
        with self._progress:
            self._progress.wait_for(lambda: checkpoint in self._outcomes or bool(self._abandoned))
            return self._outcomes.get(checkpoint, self._abandoned)

    def abandon(self, why: str) -> None:
        """Commit no more checkpoints. An upload that is under way continues, but no trial will start from its checkpoint."""
        with self._progress:
            self._abandoned = self._abandoned or why
            self._progress.notify_all()

    @property
    def unsaved(self) -> int:
        """The number of checkpoints that this rank still has to save."""
        return len(self._unsaved)

    # -- how rank 0 commits, and how the other ranks answer it

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._save(job)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
                self._note(job.moment, said)
                with self._progress:
                    if self._left:
                        self._outcomes[job.id] = said
                    elif self._rank == 0 and not isinstance(error, _RankFailed):
                        self._error = error
                job.drop()
            job.unlock()
            with self._progress:
                self._telling = False
                self._unsaved.pop(job.id, None)
                self._progress.notify_all()

    def _save(self, job: _Job) -> None:
        if job.elsewhere is not None:
            shutil.copytree(job.elsewhere, job.staging, dirs_exist_ok=True)
            shutil.rmtree(job.elsewhere)
        files: Files = checkpoints.digest(job.staging)
        with self._storing():
            target = self._patiently(job, functools.partial(place, job.uri))
            if not target.local:
                # Other ranks may upload a file with the same name and another size at this moment.
                self._patiently(job, functools.partial(_upload, target, job.staging, files, self._world_size == 1))
                self._is_available()
            elif self._rank == 0:
                os.makedirs(target.path, exist_ok=True)
                move_into(job.staging, target.path)
        waits = target.local and self._rank != 0
        self._note(job.moment, Shard(files, self.node, job.staging if waits else None))
        if self._rank == 0:
            try:
                merged = self._commit(job, target, files)
            except BaseException:
                with contextlib.suppress(Exception):  # the driver deletes leftovers later
                    checkpoints.delete(job.uri)
                raise
            self._tell(job, self._info(job, sum(length for length, _ in merged.values())))
        if not waits:
            shutil.rmtree(job.staging, ignore_errors=True)

    def _tell(self, job: _Job, info: CheckpointInfo) -> None:
        """Tell the driver about a saved checkpoint. If the segment has ended, keep the news until the driver asks for it."""
        with self._progress:
            if self._left:
                self._outcomes[job.id] = info
                return
            self._telling = True
        self._committed(info)

    def _commit(self, job: _Job, target: Place, own: Files) -> Files:
        """Add the shards of the other ranks to a checkpoint, and commit it. Return its files."""
        others = self._collect(job.moment)
        files = self._gather(target, own, others) if target.local else self._agree(target, job, own, others)
        if self._abandoned:
            raise CheckpointError(self._abandoned)
        about = {"segment": self._segment, "iteration": job.iteration, "world_size": self._world_size}
        durable_below = self._storage if self._durable else None
        with self._storing():
            self._patiently(job, functools.partial(checkpoints.commit, job.uri, files, about, durable_below))
        self._is_available()
        return files

    def _wait_for_storage(self) -> None:
        """Wait while the storage is not available and many checkpoints wait for it, so that they do not fill the disk."""

        def has_room() -> bool:
            few = len(self._unsaved) < MOST_WAITING
            return few or self._unavailable_since is None or bool(self._abandoned)

        with self._progress:
            self._progress.wait_for(has_room)

    def _patiently(self, job: _Job, step: Callable[[], T]) -> T:
        """Carry out a step of saving, and return its result. While the storage is not available, try again.

        The step must be safe to repeat. Training continues meanwhile, because this is the saver's thread.
        """
        for wait in itertools.chain(_RETRY_WAITS_S, itertools.repeat(_RETRY_WAITS_S[-1])):
            try:
                return step()
            except (OSError, CheckpointUnreachable) as error:
                if not (isinstance(error, _NotUploaded) or is_passing(error)):
                    raise
                left = self._time_left()
                if left < wait:
                    raise
                log.warning(
                    "the checkpoint of iteration %s cannot be saved now, and this will be tried again for up to %.0f s: %s (%s)",
                    job.iteration, left, error, job.uri,
                )  # fmt: skip
            with self._progress:
                if self._progress.wait_for(lambda: bool(self._abandoned), wait):
                    raise CheckpointError(self._abandoned)
        raise AssertionError

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """Say of an error in the `with` block that the storage cannot be written, so that the driver pauses the experiment."""
        try:
            yield
        except (OSError, CheckpointUnreachable) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE):
                raise  # the disk is full, which is known by this error, or this process has too many files open
            raise OSError(f"{text_of(error)}; {UNWRITABLE} {self._storage}") from error

    def _is_available(self) -> None:
        """Note that something was saved."""
        with self._progress:
            self._unavailable_since = None
            self._progress.notify_all()

    def _time_left(self) -> float:
        """Note that the storage is not available. Return for how many seconds it makes sense to try again."""
        now = time.monotonic()
        with self._progress:
            if self._unavailable_since is None:
                self._unavailable_since = now
            return RETRY_S - (now - self._unavailable_since)

    def _info(self, job: _Job, size: int, ready: bool = True) -> CheckpointInfo:
        return CheckpointInfo(
            id=job.id,
            uri=job.uri,
            step=job.iteration,
            bytes=size,
            ready=ready,
            node=self.node if is_local(job.uri) else None,
            took_s=round(job.took_s, 4),
            age_s=round(time.monotonic() - job.taken_at, 4),
        )

    def _gather(self, target: Place, own: Files, others: Mapping[int, Shard]) -> Files:
        """Move the other ranks' shards to `target`, which is on this node's disk. Return the files of all ranks."""
        merged = dict(own)
        for rank, shard in sorted(others.items()):
            wanted = {name: file for name, file in shard.files.items() if name not in merged}
            if shard.staging is None:
                continue
            if os.path.isdir(shard.staging):
                move_into(shard.staging, target.path, wanted)
                shutil.rmtree(shard.staging, ignore_errors=True)
            elif self._bring is not None and shard.node not in (None, self.node):
                self._bring(shard.staging, str(shard.node), wanted, target.path)
            else:
                raise CheckpointError(f"the part of rank {rank} is missing from {shard.staging}")
            merged.update(wanted)
        return merged

    def _agree(self, target: Place, job: _Job, own: Files, others: Mapping[int, Shard]) -> Files:
        """Check that no two of the other ranks uploaded different files under one name, and return the files of all ranks.

        If rank 0 has a file with that name too, its file replaces the others, which is not an error.
        """
        merged: Files = {}
        for rank, shard in sorted(others.items(), reverse=True):
            for name in merged.keys() & shard.files.keys() - own.keys():
                if merged[name] != shard.files[name]:
                    raise CheckpointError(f"rank {rank} and a higher rank both saved {name}, with different contents")
            merged.update(shard.files)
        if any(merged.get(name, file) != file for name, file in own.items()):
            # This replaces what other ranks saved under the same names.
            self._patiently(job, functools.partial(_upload, target, job.staging, own))
        return merged | own

    def _note(self, moment: Moment, shard: Shard | str | None) -> None:
        with self._progress:
            self._shards[moment] = shard
            self._progress.notify_all()

    def _collect(self, moment: Moment) -> dict[int, Shard]:
        """Ask all other ranks for their shards of a checkpoint. Return the shards, by rank."""
        shards: dict[int, Shard] = {}
        if self._server is None:
            return shards
        with self._server.asking:
            self._ask_for(moment, self._server, shards)
        return shards

    def _ask_for(self, moment: Moment, server: ChannelServer, shards: dict[int, Shard]) -> None:
        for link in server.notes.values():
            link.send(("want", self._segment, moment))
        for rank, link in server.notes.items():
            patience: float | None = self.patience_s
            self._waits_since = time.monotonic()
            try:
                while True:
                    segment, which, answer = link.receive(patience)
                    if (segment, which) != (self._segment, moment):
                        continue
                    if answer is _State.FAILED:
                        raise _RankFailed(f"rank {rank} has failed, and has no part of the checkpoint")
                    if not isinstance(answer, _State):
                        break
                    # The driver ends the segment if a rank does not start. It also limits the time for saving.
                    patience = self.patience_s if answer is _State.TRAINING else None
                    if answer is _State.SAVING:
                        self._waits_since = None
            except TimeoutError:
                raise CheckpointError(
                    f"rank {rank} did not reach report {moment[0]} within {self.patience_s:g} s, so its part of the "
                    "checkpoint is missing"
                ) from None
            finally:
                self._waits_since = None
            if isinstance(answer, str):
                raise CheckpointError(f"rank {rank} could not save its part of the checkpoint: {answer}")
            shards[rank] = answer

    def answer(self, moment: Moment, under_way: Callable[[], None]) -> Shard | _State | str:
        """Wait until this rank's shard of a checkpoint is saved, and return it, or the reason why it could not be saved.

        Return `_State.FAILED` if this rank has failed before it made the checkpoint's report.

        Only ranks other than 0 call this. If this rank has made the checkpoint's report and is still saving its shard,
        `under_way` is called before the wait.
        """
        with self._progress:
            self._progress.wait_for(lambda: moment in self._shards or self._passed >= moment or self._finished)
            if moment not in self._shards and self._passed < moment and self._failed:
                return _State.FAILED
            shard = self._shards.get(moment, Shard({}))
        if shard is None:
            under_way()
            with self._progress:
                self._progress.wait_for(lambda: self._shards[moment] is not None)
                shard = self._shards[moment]
        assert shard is not None
        return shard

    def discard(self) -> None:
        """Delete shards that rank 0 has not asked for. Call this once the whole group has ended."""
        for shard in self._shards.values():
            if isinstance(shard, Shard) and shard.staging is not None:
                shutil.rmtree(shard.staging, ignore_errors=True)

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise CheckpointError(f"a checkpoint could not be saved: {error}") from error


class _NotUploaded(OSError):
    """An upload has ended without an error, but a file is missing or incomplete."""


def _upload(target: Place, folder: str, files: Files, sizes: bool = True) -> None:
    """Copy the files of a local directory to a URI, and check that they are there; if `sizes` is set, with their sizes.

    If a connection breaks when the last bytes of a file are sent, pyarrow may report no error.
    """
    target.upload(folder)
    there = target.sizes()
    for name, (size, _) in sorted(files.items()):
        if name not in there:
            raise _NotUploaded(f"{name} was not uploaded to {target.uri}")
        if sizes and there[name] != size:
            raise _NotUploaded(f"{name} has {counted(there[name], 'byte')} instead of {size} at {target.uri}")


def _note_full_disk(error: Exception, folder: str) -> None:
    """Add a note to an error if the disk of a folder is full.

    `torch.save` says only "unexpected pos 576 vs 534", and errors of the operating system name no file if a write fails.
    """
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
        if free < FULL_BYTES:
            left = f"{free} bytes are left on the disk of {folder}"
            error.add_note(left if NO_SPACE in text_of(error) else f"{NO_SPACE}: {left}")


def _not_told(info: CheckpointInfo) -> None:
    raise AssertionError(f"the driver asks for {info.id}, since its segment has ended")


def answer_notes(
    client: ChannelClient,
    saver: Callable[[str], Saver | None],
    begun: Callable[[str], bool] = lambda _: True,
    cut: Callable[[], object] = lambda: None,
) -> None:
    """Answer rank 0's questions about shards until the group ends. Every other rank runs this in a thread.

    begun: a function that returns whether this rank has begun a segment. If the ranks have no process group of
        `torch.distributed`, rank 0 may ask about a segment before this rank has begun it.
    cut: called if rank 0's machine can no longer be reached.
    """
    try:
        while True:
            _, segment, moment = client.notes.receive()
            if not begun(segment):
                client.notes.send((segment, moment, _State.STARTING))
                deadline = time.monotonic() + _SHARD_TIMEOUT_S
                while not begun(segment) and time.monotonic() < deadline:
                    time.sleep(0.005)
                if begun(segment):
                    client.notes.send((segment, moment, _State.TRAINING))
            own = saver(segment)
            under_way = functools.partial(client.notes.send, (segment, moment, _State.SAVING))
            forgotten = f"the rank has no part of a checkpoint of {segment}"
            client.notes.send((segment, moment, own.answer(moment, under_way) if own is not None else forgotten))
    except PeerLost as lost:
        if lost.cut:
            cut()
    except OSError:
        return
