"""Choose the parts of a log that are kept, and cut it into chunks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.logs import CHUNK_BYTES, LogChunk, LogLimit, Range, cut, merged, without

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def numbers(ranges: list[Range]) -> set[int]:
    return {number for start, end in ranges for number in range(start, end)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_bytes(one: list[Range], other: list[Range]) -> None:
    assert numbers(merged(one)) == numbers(one)
    assert numbers(without(one, other)) == numbers(one) - numbers(other)
    found = without(one, other)
    assert all(start < end for start, end in found)
    assert all(before[1] < after[0] for before, after in pairwise(found))


def test_the_head_and_the_tail_are_kept() -> None:
    limit = LogLimit.of(100)
    assert limit == LogLimit(head=25, tail=75)
    assert limit.kept(10) == [(0, 10)]
    assert limit.kept(100) == [(0, 100)]
    assert limit.kept(101) == [(0, 25), (26, 101)]
    assert LogLimit.of(0).kept(50) == []


def test_chunks_give_back_the_file_and_end_at_the_head() -> None:
    file = bytes(range(256)) * 1024
    head = 100_000
    chunks = list(cut(lambda at, size: file[at : at + size], [(0, len(file))], head, 3, 5.0))
    assert b"".join(chunk.content() for chunk in chunks) == file
    assert max(chunk.size for chunk in chunks) == CHUNK_BYTES
    assert head in {chunk.start for chunk in chunks}
    assert {(chunk.rank, chunk.time) for chunk in chunks} == {(3, 5.0)}


def test_a_file_that_has_become_shorter_gives_what_is_there() -> None:
    file = b"short"
    [chunk] = cut(lambda at, size: file[at : at + size], [(2, 90)], 0, 0, 0.0)
    assert (chunk.start, chunk.end, chunk.content()) == (2, 5, b"ort")
    assert LogChunk.of(0, 5, b"", 0.0).content() == b""
