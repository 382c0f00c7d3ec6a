"""Turn the stored pieces of a log into text: its end, the part after an offset, or the lines that contain a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tuner.domain.logs import Range, merged
from tuner.store.records import LogQuery

_CHARACTER_BYTES = 4  # the length of the longest character; a smaller window might not contain a whole character
_LINE_BYTES = 160  # the assumed length of a line, for a first guess at the size of the last lines


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` to `end` of a log file; `load` reads them."""

    start: int
    end: int
    load: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class LogText:
    """Bytes `start` to `end` of a log file, as text. Where bytes are not stored, a line in the text says so.

    left_out: the number of bytes that are not stored.
    """

    start: int
    end: int
    text: str
    left_out: int


Loaded = list[tuple[int, bytes]]
"""Parts of a log as (offset, content), in ascending order and without overlap."""


def text_of(pieces: Sequence[Piece], query: LogQuery, complete: bool) -> LogText:
    """Return the text that the query selects.

    Args:
        pieces: the pieces, sorted by their start. They may overlap.
        query: the part to return.
        complete: True if the log has ended and no more bytes will follow.
    """
    size = max((piece.end for piece in pieces), default=0)
    if query.search is not None:
        return _matches(_loaded(pieces, (0, size)), query.search, query)
    if query.offset is not None:
        begin = query.offset
        loaded = _loaded(pieces, _first(pieces, begin, max(query.limit, _CHARACTER_BYTES)))
    else:
        loaded = _last(pieces, query)
        begin = loaded[0][0] if loaded else size
        if loaded and begin == min(piece.start for piece in pieces):
            begin = 0  # counts the bytes before the first piece as left out
    if not (complete and loaded and loaded[-1][0] + len(loaded[-1][1]) == size):
        loaded = _whole_characters(loaded)
    return _joined(loaded, begin)


def _first(pieces: Sequence[Piece], offset: int, limit: int) -> Range:
    """Return the range that starts at `offset` and contains `limit` stored bytes, or all that follow if there are fewer."""
    left = limit
    for start, end in merged((max(piece.start, offset), piece.end) for piece in pieces):
        if end - start >= left:
            return offset, start + left
        left -= end - start
    return offset, max((piece.end for piece in pieces), default=offset)


def _last(pieces: Sequence[Piece], query: LogQuery) -> Loaded:
    """Return the last `limit` stored bytes of the log. If `tail` is given, return only their last `tail` lines."""
    if query.tail is None:
        return _loaded(pieces, _end(pieces, query.limit))
    if query.tail == 0:
        return []
    size = min(query.limit, query.tail * _LINE_BYTES)
    while True:
        loaded = _loaded(pieces, _end(pieces, size))
        lines = sum(content.count(b"\n") for _, content in loaded)
        if lines > query.tail or size >= query.limit or sum(len(content) for _, content in loaded) < size:
            return _last_lines(loaded, query.tail)
        size = min(query.limit, 4 * size)


def _end(pieces: Sequence[Piece], size: int) -> Range:
    """Return the range that ends with the log and contains `size` stored bytes, or all of them if there are fewer."""
    kept = merged((piece.start, piece.end) for piece in pieces)
    for start, end in reversed(kept):
        if end - start >= size:
            return end - size, kept[-1][1]
        size -= end - start
    return 0, kept[-1][1] if kept else 0


def _loaded(pieces: Sequence[Piece], window: Range) -> Loaded:
    found: Loaded = []
    covered, stop = window
    for piece in pieces:
        if piece.end <= covered or piece.start >= stop:
            continue
        begin = max(covered, piece.start)
        content = piece.load()[begin - piece.start : stop - piece.start]
        if content:
            found.append((begin, content))
            covered = begin + len(content)
    return found


def _last_lines(loaded: Loaded, lines: int) -> Loaded:
    """Return only the last lines of the text. An unfinished line counts as a line."""
    found: Loaded = []
    wanted = lines + (1 if loaded and loaded[-1][1].endswith(b"\n") else 0)
    for start, content in reversed(loaded):
        at = len(content)
        while wanted and at >= 0:
            at = content.rfind(b"\n", 0, at)
            if at < 0:
                break
            wanted -= 1
        if at >= 0:
            if content[at + 1 :]:
                found.append((start + at + 1, content[at + 1 :]))
            break
        found.append((start, content))
    return found[::-1]


def _whole_characters(loaded: Loaded) -> Loaded:
    """Cut off an incomplete character at the end, whose other bytes are outside the window or not written yet."""
    if not loaded:
        return loaded
    loaded = _runs(loaded)  # the character may have begun in an earlier part
    start, content = loaded[-1]
    for length in range(1, min(4, len(content) + 1)):
        first = content[-length]
        if first & 0xC0 == 0x80:
            continue  # this is not the first byte of a character
        needs = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
        if needs > length:
            content = content[:-length]
        break
    return [*loaded[:-1], (start, content)]


def _runs(loaded: Loaded) -> Loaded:
    """Join the parts that have no gap in between."""
    runs: list[tuple[int, list[bytes]]] = []
    at = -1
    for start, content in loaded:
        if start == at:
            runs[-1][1].append(content)
        else:
            runs.append((start, [content]))
        at = start + len(content)
    return [(start, b"".join(contents)) for start, contents in runs]


def _joined(loaded: Loaded, begin: int) -> LogText:
    parts: list[bytes] = []
    at, left_out = begin, 0
    for start, content in loaded:
        if start > at:
            left_out += start - at
            parts.append(gap_note(start - at, bool(parts) and not parts[-1].endswith(b"\n")))
        parts.append(content)
        at = start + len(content)
    return LogText(begin, at, b"".join(parts).decode(errors="replace"), left_out)


def gap_note(size: int, in_line: bool = False) -> bytes:
    """Return the line that takes the place of bytes that were not kept."""
    newline = "\n" if in_line else ""
    were = "byte of the log was" if size == 1 else "bytes of the log were"
    return f"{newline}[... {size:,} {were} not kept ...]\n".encode()


def _matches(loaded: Loaded, search: str, query: LogQuery) -> LogText:
    """Return the lines that contain `search`, ignoring case; if they exceed the limits of the query, only the last of them."""
    wanted = search.casefold()
    runs = _runs(loaded)
    found = [
        line.rstrip("\r")
        for _, content in runs
        for line in content.decode(errors="replace").split("\n")
        if wanted in line.casefold()
    ]
    if query.tail is not None:
        found = found[-query.tail :] if query.tail else []
    text = "".join(f"{line}\n" for line in found)
    if len(text) > query.limit:
        cut = text[-query.limit - 1 :]  # one more, since a line may begin just at the limit
        text = cut.partition("\n")[2] or cut[1:]  # part of a line could be mistaken for a whole one
    gaps = sum(after[0] - (before[0] + len(before[1])) for before, after in pairwise(runs))
    end = runs[-1][0] + len(runs[-1][1]) if runs else 0
    return LogText(0, end, text, gaps + (runs[0][0] if runs else 0))
