"""The group manager's state of a running segment: its group, its interrupts, and calls to its ranks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tuner.domain.logs import LogChunk
from tuner.trials.groups.group import Group
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.protocol import Progress

ANSWER_S = 2.0
"""The timeout of a request to a rank, in seconds."""
SAVING_S = 600.0
"""Seconds that a rank may take to save its last checkpoint, even if `hang_timeout_s` is shorter."""
LOOK_S = 1.0
"""Seconds between two checks whether a rank is still saving its last checkpoint."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A request to end a segment now, whatever its ranks do. reason: why, in words."""

    how: Literal["left", "failed"]
    reason: str


class EndedEarly(Exception):
    """Raised while waiting for a segment's ranks if the segment must end without waiting for them."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class LogFile(NamedTuple):
    """The node and the path of a rank's log file."""

    rank: int
    node: str  # Ray's id
    path: str


@dataclass(slots=True, eq=False)
class SegmentRun:
    """The state of a segment that waits for its group, gets ready or trains."""

    launch: Launch
    ending: asyncio.Future[Ending]
    group: Group | None = None
    training: bool = False
    over: bool = False
    interrupt: str | None = None  # an interrupt that arrived while the ranks were getting ready
    measuring: dict[int, asyncio.Task[dict[str, float]]] = field(default_factory=dict)  # pending questions, by rank
    grace: asyncio.Task[None] | None = None
    interrupting: asyncio.Task[None] | None = None
    log_files: Sequence[LogFile] = ()
    log_rest: list[LogChunk] = field(default_factory=list)  # the log chunks that the ranks sent with their results
    gone: Awaitable[Any] | None = None  # completes once the ranks' processes have ended; None if they are kept

    def end(self, how: Literal["left", "failed"], reason: str) -> None:
        """End the segment now, unless it has ended already."""
        if not self.ending.done():
            self.ending.set_result(Ending(how, reason))

    @property
    def saving_s(self) -> float:
        """Return the seconds that a rank of this segment may take to save its last checkpoint."""
        return max(SAVING_S, self.launch.limits.hang_timeout_s or 0.0)

    def log_path(self, rank: int) -> str:
        return os.path.join(self.launch.log_dir, self.launch.segment_id, f"rank{rank}.log")

    async def ask(self, question: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """Call a method of the ranks' actors. Return the answers by rank, with an exception for a rank that failed."""
        if self.group is None:
            return {}
        actors = self.group.actors
        ranks = range(len(actors)) if ranks is None else ranks
        answers = await asyncio.gather(
            *(asyncio.wait_for(answer(getattr(actors[rank], question).remote()), ANSWER_S) for rank in ranks),
            return_exceptions=True,
        )
        return dict(zip(ranks, answers, strict=True))

    async def stacks(self) -> dict[str, str]:
        """Return the current Python stacks of all ranks, by rank. A rank that cannot answer has a note instead."""
        answers = await self.ask("stacks")
        silent = "no answer: the process is stopped, or a C call holds the GIL"
        return {str(rank): found if isinstance(found, str) else silent for rank, found in answers.items()}

    async def saves(self, ranks: Sequence[int] | None = None, *, too_long: bool = False) -> bool:
        """Return whether one of these ranks is leaving its training function and still has to commit a checkpoint.

        A rank that has just finished counts too.

        Args:
            ranks: the ranks to ask; None means all.
            too_long: True if the ranks have already had enough time to save. Then a rank counts only if it waits for the
                driver, because it cannot go faster while the driver cannot commit.
        """
        answers = (await self.ask("progress", ranks)).values()
        if too_long:
            return any(isinstance(a, Progress) and a.saving and a.waiting for a in answers)
        return any(a is None or (isinstance(a, Progress) and a.saving) for a in answers)


async def answer(ref: Any) -> Any:
    """Await a Ray `ObjectRef`. Unlike the reference itself, this coroutine can be wrapped in a task."""
    return await ref
