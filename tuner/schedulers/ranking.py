"""A sorted collection that stays fast at a hundred thousand entries: blocks of sorted lists.

Adding is one short memory move, a rank one short sum, whatever the size. Its form depends only on the order in which
entries came, so that folding the same events gives the same state bit for bit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)  # scores, or (score, trial) pairs

BLOCK = 1024


def _last(block: list[T]) -> T:
    return block[-1]


@dataclass(slots=True)
class Ranking(Generic[T]):
    """Entries in ascending order, equal ones in the order in which they came."""

    blocks: list[list[T]] = field(default_factory=list)
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[T]:
        for block in self.blocks:
            yield from block

    def __reversed__(self) -> Iterator[T]:
        for block in reversed(self.blocks):
            yield from reversed(block)

    def add(self, entry: T) -> None:
        self.size += 1
        if not self.blocks:
            self.blocks.append([entry])
            return
        index = min(bisect_right(self.blocks, entry, key=_last), len(self.blocks) - 1)
        block = self.blocks[index]
        insort(block, entry)
        if len(block) > 2 * BLOCK:
            self.blocks[index : index + 1] = [block[:BLOCK], block[BLOCK:]]

    def remove(self, entry: T) -> bool:
        """Take one entry equal to `entry` out; False where there is none."""
        index = bisect_left(self.blocks, entry, key=_last)
        if index == len(self.blocks):
            return False
        block = self.blocks[index]
        place = bisect_left(block, entry)
        if place == len(block) or block[place] != entry:
            return False
        del block[place]
        if not block:
            del self.blocks[index]
        self.size -= 1
        return True

    def above(self, entry: T) -> int:
        """How many entries are greater than `entry`."""
        index = bisect_right(self.blocks, entry, key=_last)
        if index == len(self.blocks):
            return 0
        greater = sum(map(len, self.blocks[index + 1 :]))
        block = self.blocks[index]
        return greater + len(block) - bisect_right(block, entry)

    def from_top(self, place: int) -> T:
        """The entry at a place counted from the greatest, which is at 1."""
        if not 1 <= place <= self.size:
            raise IndexError(place)
        for block in reversed(self.blocks):
            if place <= len(block):
                return block[-place]
            place -= len(block)
        raise IndexError(place)
