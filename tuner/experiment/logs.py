"""Read the output of ranks, from the database or from files, delete it, and read the log of the driver host from its file."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tuner.domain.logs import CHUNK_BYTES, LATE_S
from tuner.store import LogQuery, RankLog, Store
from tuner.store.output.log_text import Piece, text_of

POLL_S = 0.5
CUT = "\n(the service was shut down, so the log ends here, although it may be longer)\n"
_FILE_BYTES = 64 << 20  # at most this many bytes at the end of a log file are read


def trial_logs(store: Store, home: Path, trial: str, query: LogQuery | None = None) -> list[RankLog]:
    """Return the output of a trial's ranks, one item per segment and rank. Raise NotFound if there is no such trial.

    The driver host stores logs in the database. If the database has none, because the host is of an older version or stores no
    logs (`TUNER_LOG_BYTES=0`), the log files on this machine are read. They exist if the ranks ran on this machine.
    """
    query = query or LogQuery()
    if stored := store.logs.of_trial(trial, query):
        return stored
    record = store.trials.get(trial)
    return [
        _log_of_file(path, record.number, part.ordinal, number, query, complete=part.ended_at is not None)
        for part in record.segments
        if query.segment in (None, part.ordinal)
        for number, path in _rank_files(home / "logs" / record.experiment / part.public_id)
        if query.rank in (None, number)
    ]


def remove_old_logs(store: Store, home: Path, before: float) -> int:
    """Delete the output of the ranks of experiments that ended before this time, and return how many experiments lost some.

    It is deleted from the database, and from the log files on this machine. Files on other nodes are not deleted, because this
    process cannot reach them. The driver's logs are kept, and so are the working directories of ranks that are not empty.
    """
    lost = store.logs.prune(before)
    folder = home / "logs"
    if folder.is_dir():
        old = store.logs.prunable(before)
        lost |= {each.name for each in folder.iterdir() if each.name in old and _remove_files(each)}
    return len(lost)


def _remove_files(folder: Path) -> bool:
    """Delete the files with the output of ranks, and then the empty folders. Return whether there were any such files."""
    found = list(folder.glob("seg_*/rank*.log"))
    for path in found:
        path.unlink(missing_ok=True)  # another service may be deleting the same files
    for place in (*folder.glob("seg_*"), *folder.glob("trial_*/rank*"), *folder.glob("trial_*"), folder):
        with contextlib.suppress(OSError):  # the folder is not empty, or is already gone
            place.rmdir()
    return bool(found)


class LogReader:
    """Reads the log of one rank from the beginning to the end, even while it is being written."""

    def __init__(self, store: Store, home: Path, trial: str, segment: int, rank: int) -> None:
        self._store, self._home, self._trial = store, home, trial
        self._segment, self._rank = segment, rank
        self._offset = 0

    def next(self) -> tuple[str, bool]:
        """Return the next part of the log, and True if more can follow later."""
        query = LogQuery(segment=self._segment, rank=self._rank, offset=self._offset)
        found = trial_logs(self._store, self._home, self._trial, query)
        if not found:
            return "", not self._has_ended()
        [log] = found
        self._offset = log.end
        return log.text, not log.complete and (bool(log.text) or not self._has_ended())

    async def stream(
        self, follow: bool, ending: threading.Event, allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[str]:
        """Yield the log in pieces, up to its present end.

        If `follow` is true, continue until the rank prints nothing more. Stop early if `ending` is set, which a last line says,
        or if `allowed` returns False.
        """
        more = True
        while more and not ending.is_set() and await allowed():
            text, more = await asyncio.to_thread(self.next)
            if text:
                yield text
            elif follow and more:
                await asyncio.sleep(POLL_S)
            else:
                return
        if more and ending.is_set():
            yield CUT

    def _has_ended(self) -> bool:
        """Return True if the segment ended so long ago that no more of its log will arrive."""
        for part in self._store.trials.get(self._trial).segments:
            if part.ordinal == self._segment:
                return part.ended_at is not None and time.time() - part.ended_at > LATE_S
        return True


@dataclass(frozen=True, slots=True)
class DriverLog:
    """The end of the log of the driver hosts that have driven an experiment."""

    path: str
    text: str
    left_out: int  # the number of earlier lines that were found but are not in the text


def driver_log_path(home: Path, experiment: str) -> Path:
    """Return where the driver host writes its log of an experiment, given the experiment's public id."""
    return home / "logs" / experiment / "driver.log"


def driver_log(home: Path, experiment: str, tail: int, search: str | None = None) -> DriverLog | None:
    """Return the newest lines of the driver host's log of an experiment, or None if this machine has no such log.

    Args:
        home: the directory of the installation.
        experiment: the public id of the experiment.
        tail: the maximum number of lines to return.
        search: return only lines that contain this text, ignoring case.
    """
    path = driver_log_path(home, experiment)
    lines: list[str] = []
    there = [part for part in (path.with_name(f"{path.name}.1"), path) if part.exists()]  # the older part first
    for part in there:
        lines += part.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    if not there:
        return None
    if search:
        lines = [line for line in lines if search.lower() in line.lower()]
    kept = lines[-tail:] if tail else []
    return DriverLog(str(path), "".join(kept), len(lines) - len(kept))


def _rank_files(folder: Path) -> list[tuple[int, Path]]:
    found = []
    for path in folder.glob("rank*.log"):
        number = path.stem.removeprefix("rank")
        if number.isdecimal():
            found.append((int(number), path))
    return sorted(found)


def _log_of_file(path: Path, trial: int, segment: int, rank: int, query: LogQuery, *, complete: bool) -> RankLog:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())

        def load(start: int) -> bytes:
            return os.pread(file.fileno(), CHUNK_BYTES, start)

        pieces = [
            Piece(start, min(start + CHUNK_BYTES, status.st_size), functools.partial(load, start))
            for start in range(max(0, status.st_size - _FILE_BYTES), status.st_size, CHUNK_BYTES)
        ]
        found = text_of(pieces, query, complete)
    return RankLog(
        trial=trial,
        segment=segment,
        rank=rank,
        text=found.text,
        start=found.start,
        end=found.end,
        left_out=found.left_out,
        complete=complete and found.end >= status.st_size,
        time=status.st_mtime,
    )
