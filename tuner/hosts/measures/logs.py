"""Store the logs of ranks: the driver host writes the output that the ranks send to the database.

No decision depends on the output, so it is not a part of the event log. Ranks send their output about once a second. Parts
that arrive at about the same time are written in one transaction. When a segment ends, its ranks send the output that is
still missing. If a rank was killed before that, the missing output is read from the log file on the rank's node, provided
that the node is alive. While the database is unreachable, the output stays in the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tuner.domain.logs import LogChunk, LogLimit, Range
from tuner.errors import Retryable, StoreError
from tuner.trials.groups.cluster import nodes
from tuner.trials.groups.segments.segment_run import LogFile

log = logging.getLogger(__name__)

GATHER_S = 0.25
"""Seconds that a chunk waits for other chunks, so that all of them are written in one transaction."""
LAST_WORDS_S = 5.0
"""Seconds that a segment's ranks may take to send the remaining output after the segment has ended."""
RETRY_S = 1.0
"""Seconds to wait before repeating a request that the database did not answer."""
_READ_S = 60.0  # timeout in seconds for reading a log file on another node
_COMPACT_AT = 64  # merge a log's chunks after this many new ones
_FEW = 3  # at the end, merge only if there are more chunks than this


class Owner(NamedTuple):
    """The experiment, the trial and the ordinal of a segment, to which logs belong."""

    experiment: int  # the store's id
    trial: int
    segment: int


class LogTable(Protocol):
    """The part of the store that writes and reads logs. The methods may be called from any thread."""

    def add(
        self, experiment_id: int, chunks: Mapping[tuple[int, int], Sequence[LogChunk]], *, limit: LogLimit | None
    ) -> None: ...

    def compact(self, experiment_id: int, segment: tuple[int, int], rank: int, limit: LogLimit) -> None: ...

    def ranges(self, experiment_id: int, segment: tuple[int, int], rank: int) -> list[Range]: ...


OnNode = Callable[..., Awaitable[Any]]
"""A function that calls another function on a node of the cluster; called with (node, function, *arguments)."""


@dataclass(slots=True, eq=False)
class _Segment:
    """The logs of one segment, from its launch until they are complete."""

    owner: Owner
    ended_ranks: set[int] = field(default_factory=set)  # the ranks whose last chunk is stored
    chunks: dict[int, int] = field(default_factory=dict)  # rank -> number of chunks that are not merged yet
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Task[None] | None = None


class LogKeeper:
    """Writes the logs of all segments of a host. Use it in the host's event loop."""

    def __init__(self, table: LogTable, limit: LogLimit, on_node: OnNode) -> None:
        self._table, self._limit, self._on_node = table, limit, on_node
        self._segments: dict[str, _Segment] = {}
        self._waiting: list[tuple[_Segment, Sequence[LogChunk], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._flushing = 0  # number of callers that wait for complete logs
        self._hurry = asyncio.Event()  # set to write the waiting chunks now
        # Only one segment at a time reads from the database, so that an outage does not block all threads.
        self._asking = asyncio.Lock()

    def begin(self, segment_id: str, owner: Owner) -> None:
        """Accept the output of this segment's ranks from now on."""
        self._segments[segment_id] = _Segment(owner)

    async def take(self, segment_id: str, chunks: Sequence[LogChunk]) -> None:
        """Store chunks that a rank has sent, and return once they are in the database.

        Chunks of a segment whose logs are complete are ignored, because the log files have been read by then.
        """
        segment = self._segments.get(segment_id)
        if segment is not None and chunks:
            await self._store(segment, chunks)

    def end(
        self,
        segment_id: str,
        files: Sequence[LogFile],
        gone: Awaitable[Any] | None,
        rest: Sequence[LogChunk] = (),
    ) -> None:
        """Complete the logs of a segment in the background.

        files: the log files of the ranks, from which missing output is read.
        gone: an awaitable that is done once the ranks' processes have exited; None if the processes continue and
            send the remaining output themselves.
        rest: the remaining output of ranks that no longer send any.
        """
        segment = self._segments.get(segment_id)
        if segment is not None and segment.closing is None:
            segment.closing = asyncio.create_task(self._close(segment_id, segment, files, gone, rest))

    def is_closing(self, segment_id: str) -> bool:
        """Return whether the logs of this segment are being completed."""
        segment = self._segments.get(segment_id)
        return segment is not None and segment.closing is not None

    async def flush(self, experiment: int | None = None, *, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds until the logs of ended segments are complete.

        experiment: the experiment whose logs to wait for; None for the logs of all experiments.
        """
        closing = [
            segment.closing
            for segment in self._segments.values()
            if segment.closing is not None and experiment in (None, segment.owner.experiment)
        ]
        if not closing:
            return
        self._flushing += 1
        self._hurry.set()
        try:
            await asyncio.wait(closing, timeout=timeout)
        finally:
            self._flushing -= 1

    async def close(self, *, timeout: float) -> None:
        """Wait at most `timeout` seconds until the logs of ended segments are complete, and give up those that are not.

        The next driver of an experiment reads what is missing from the log files.
        """
        await self.flush(timeout=timeout)
        left = [segment.closing for segment in self._segments.values() if segment.closing is not None]
        if self._writer is not None:
            left.append(self._writer)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _close(
        self,
        segment_id: str,
        segment: _Segment,
        files: Sequence[LogFile],
        gone: Awaitable[Any] | None,
        rest: Sequence[LogChunk],
    ) -> None:
        try:
            if rest:
                with contextlib.suppress(Exception):  # the output will be read from the files instead
                    await self._store(segment, rest)
            await self._last_words(segment, {file.rank for file in files} - {chunk.rank for chunk in rest}, gone)
            missing = [file for file in files if file.rank not in segment.ended_ranks]
            await asyncio.gather(*(self._read_rest(segment, file) for file in missing))
            for rank, count in segment.chunks.items():
                if count > _FEW:
                    await self._compact(segment, rank)
        except Exception:
            log.warning("the logs of %s are not complete", segment_id, exc_info=True)
        finally:
            if self._segments.get(segment_id) is segment:  # the segment may have begun again
                del self._segments[segment_id]

    async def _last_words(self, segment: _Segment, ranks: set[int], gone: Awaitable[Any] | None) -> None:
        """Wait until all ranks have sent the end of their logs or have ended, but at most `LAST_WORDS_S`."""
        leaving = asyncio.ensure_future(gone) if gone is not None else None
        deadline = time.monotonic() + LAST_WORDS_S
        while not ranks <= segment.ended_ranks and (left := deadline - time.monotonic()) > 0:
            segment.changed.clear()
            changed = asyncio.ensure_future(segment.changed.wait())
            waiting = {changed, leaving} if leaving is not None else {changed}
            try:
                await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if leaving is not None and leaving.done():
                return

    async def _read_rest(self, segment: _Segment, file: LogFile) -> None:
        """Store the part of a log file that the rank has not sent. Retry while the database is unreachable."""
        while file.rank not in segment.ended_ranks:
            try:
                have = await self._ranges(segment, file.rank)
                chunks = await self._rest_of(file, have)
                if chunks:
                    await self._store(segment, chunks)
                return
            except Exception as error:
                if not (isinstance(error, StoreError) and isinstance(error, Retryable)):
                    log.warning("the missing part of the log %s cannot be stored", file.path, exc_info=True)
                    return
                log.info("the missing part of the log %s waits for the database: %s", file.path, error)
            await asyncio.sleep(RETRY_S)

    async def _ranges(self, segment: _Segment, rank: int) -> list[Range]:
        """Return the ranges of a rank's log that are in the database. Wait until the database answers."""
        owner = segment.owner
        async with self._asking:
            while True:
                try:
                    return await asyncio.to_thread(
                        self._table.ranges, owner.experiment, (owner.trial, owner.segment), rank
                    )
                except StoreError as error:
                    if not isinstance(error, Retryable):
                        raise
                await asyncio.sleep(RETRY_S)

    async def _rest_of(self, file: LogFile, have: list[Range]) -> list[LogChunk]:
        """Return the part of a log file that is not stored yet, as chunks; none if the file's node is gone."""
        try:
            reading = self._on_node(file.node, nodes.rest_of_log, file.path, file.rank, self._limit, have)
            chunks: list[LogChunk] = await asyncio.wait_for(reading, _READ_S)
        except Exception as error:  # the node is gone, and with it the output that was not sent
            log.info("the missing part of the log %s on node %s cannot be read: %s", file.path, file.node[:8], error)
            return []
        return chunks

    async def _store(self, segment: _Segment, chunks: Sequence[LogChunk]) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((segment, chunks, stored))
        if self._flushing:
            self._hurry.set()
        if self._writer is None or self._writer.done():
            # The task writes for all experiments, so it must not have the context of one.
            self._writer = asyncio.create_task(self._write(), context=contextvars.Context())
        await stored

    async def _write(self) -> None:
        """Write all waiting chunks to the database, and repeat this until no chunk waits."""
        while self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._hurry.wait()
            self._hurry.clear()
            batch, self._waiting = self._waiting, []
            by_experiment: dict[int, list[tuple[_Segment, Sequence[LogChunk], asyncio.Future[None]]]] = {}
            for item in batch:
                by_experiment.setdefault(item[0].owner.experiment, []).append(item)
            for experiment, items in by_experiment.items():
                await self._write_one(experiment, items)

    async def _write_one(
        self, experiment: int, items: Sequence[tuple[_Segment, Sequence[LogChunk], asyncio.Future[None]]]
    ) -> None:
        rows: dict[tuple[int, int], list[LogChunk]] = {}
        for segment, chunks, _ in items:
            rows.setdefault((segment.owner.trial, segment.owner.segment), []).extend(chunks)
        try:
            await asyncio.to_thread(self._table.add, experiment, rows, limit=self._limit)
        except Exception as error:  # the rank tries again
            for _, _, stored in items:
                if not stored.done():
                    stored.set_exception(error)
            return
        for segment, chunks, stored in items:
            if not stored.done():
                stored.set_result(None)
            await self._count(segment, chunks)

    async def _count(self, segment: _Segment, chunks: Sequence[LogChunk]) -> None:
        for chunk in chunks:
            if not chunk.size:
                segment.ended_ranks.add(chunk.rank)
                segment.changed.set()
                continue
            segment.chunks[chunk.rank] = segment.chunks.get(chunk.rank, 0) + 1
            if segment.chunks[chunk.rank] >= _COMPACT_AT:
                await self._compact(segment, chunk.rank)

    async def _compact(self, segment: _Segment, rank: int) -> None:
        segment.chunks[rank] = 0
        owner = segment.owner
        try:
            await asyncio.to_thread(
                self._table.compact, owner.experiment, (owner.trial, owner.segment), rank, self._limit
            )
        except Exception:  # the chunks stay unmerged
            log.info("the chunks of a log could not be merged", exc_info=True)
