"""Define the stored log of one rank in one segment: compressed chunks of the file that the rank writes.

A chunk records which bytes of the file it contains, so chunks can be sent twice, overlap, or arrive in any order. Bytes
that are in no chunk were dropped. An empty chunk marks the end of the file, after which the rank writes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

CHUNK_BYTES = 64 << 10
LATE_S = 60.0
"""Seconds to wait, after a segment has ended, for the last part of its log, which may come from another node."""
_LEVEL = 3  # zlib's level, which compresses text almost as well as the best level, in a third of the time

Range = tuple[int, int]
"""A range of bytes of a log file, as (start, end). The end is excluded."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a rank's log file."""

    rank: int
    start: int  # offset of its first byte in the file
    size: int  # bytes before compression; 0 marks the end of the file
    data: bytes  # compressed with zlib
    time: float  # when the chunk was read from the file, in seconds since the epoch

    @classmethod
    def of(cls, rank: int, start: int, content: bytes, time: float) -> LogChunk:
        """Return the chunk for `content`, the bytes of the log file from offset `start` on."""
        return cls(rank, start, len(content), zlib.compress(content, _LEVEL) if content else b"", time)

    @property
    def end(self) -> int:
        """The offset of the first byte after this chunk."""
        return self.start + self.size

    def content(self) -> bytes:
        """Return the uncompressed bytes of this chunk."""
        return zlib.decompress(self.data) if self.data else b""


@dataclass(frozen=True, slots=True)
class LogLimit:
    """The number of bytes of a log to keep: the first `head` bytes and the last `tail` bytes."""

    head: int
    tail: int

    @classmethod
    def of(cls, total: int) -> LogLimit:
        """Return a limit of `total` bytes: a quarter in the head, for start-up messages, and the rest in the tail."""
        head = total // 4
        return cls(head, total - head)

    def kept(self, size: int) -> list[Range]:
        """Return which ranges of bytes to keep, for a log file of `size` bytes."""
        return merged([(0, min(size, self.head)), (max(0, size - self.tail), size)])


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges that cover the same bytes, in ascending order, and that neither touch nor overlap."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the parts of `ranges` that are not in `taken`, in ascending order."""
    taken = merged(taken)
    found: list[Range] = []
    for start, end in merged(ranges):
        for taken_start, taken_end in taken:
            if taken_end <= start or taken_start >= end:
                continue
            if start < taken_start:
                found.append((start, taken_start))
            start = taken_end
        if start < end:
            found.append((start, end))
    return found


def cut(
    read: Callable[[int, int], bytes], ranges: Iterable[Range], head: int, rank: int, time: float
) -> Iterator[LogChunk]:
    """Read ranges of a log file with `read(offset, size)`, and yield their content as chunks of at most CHUNK_BYTES.

    No chunk crosses the offset `head`, so that any chunk after that offset can be dropped when newer chunks arrive.
    """
    for begin, end in ranges:
        stops = [begin, *([head] if begin < head < end else []), end]
        for part, stop in pairwise(stops):
            for start in range(part, stop, CHUNK_BYTES):
                content = read(start, min(CHUNK_BYTES, stop - start))
                if content:
                    yield LogChunk.of(rank, start, content, time)
