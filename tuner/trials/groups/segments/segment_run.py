"""The group manager's state for a running segment: its group, its interrupts, and calls to its ranks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tuner.domain.logs import LogChunk
from tuner.domain.segments import Failure
from tuner.errors import Conflict, SpecError
from tuner.trials.groups.pools.group import Group
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.lost import lost_errors, unavailable_errors
from tuner.trials.messages.profiling import ProfileRequest
from tuner.trials.messages.protocol import Progress

ANSWER_S = 2.0
"""The timeout of a request to a rank, in seconds."""
SAVING_S = 600.0
"""Seconds that a rank may take to save its last checkpoint, even if `hang_timeout_s` is shorter."""
LOOK_S = 1.0
"""Seconds between two checks whether a rank is still saving its last checkpoint."""
PROFILE_S = 30.0
"""Seconds that a rank may take to summarize a profile, or to respond while a C call holds the GIL."""
WHY_SILENT = "the process is stopped, or a C call holds the GIL"
SILENT = f"does not answer: {WHY_SILENT}"
SUMS_UP = f"is still summarizing the profile after {PROFILE_S:.0f} s; a shorter one has less to summarize"


@dataclass(frozen=True, slots=True)
class Ending:
    """A request to end a segment now, no matter what its ranks are doing.

    Attributes:
        how: the outcome of the segment.
        reason: why, in words.
        failure: the segment's failure; None if a user or the driver has ended it.
    """

    how: Literal["left", "failed"]
    reason: str
    failure: Failure | None = None


class EndedEarly(Exception):
    """Raised while waiting for a segment's ranks, if the segment must end without waiting for them any longer."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class LogFile(NamedTuple):
    """The node and path of a rank's log file."""

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
    reported_at: float = -math.inf  # when the newest report arrived or was answered, by the monotonic clock
    over: bool = False
    interrupt: str | None = None  # an interrupt that arrived while the ranks were getting ready
    measuring: dict[int, asyncio.Task[dict[str, float]]] = field(default_factory=dict)  # pending requests, by rank
    profiling: dict[int, float] = field(default_factory=dict)  # rank -> when its profile ends, by the monotonic clock
    grace: asyncio.Task[None] | None = None
    may_save: bool = True  # whether the end of the grace waits for a last checkpoint
    interrupting: asyncio.Task[None] | None = None
    log_files: Sequence[LogFile] = ()
    log_rest: list[LogChunk] = field(default_factory=list)  # the log chunks that the ranks sent with their results
    gone: asyncio.Future[None] | None = None  # completes once the ranks' processes have exited; None if they are kept

    def end(self, how: Literal["left", "failed"], reason: str, failure: Failure | None = None) -> None:
        """End the segment now, unless it has already ended."""
        if not self.ending.done():
            self.ending.set_result(Ending(how, reason, failure))

    @property
    def saving_s(self) -> float:
        """Return how many seconds a rank of this segment may take to save its last checkpoint."""
        return max(SAVING_S, self.launch.limits.hang_timeout_s or 0.0)

    def log_path(self, rank: int) -> str:
        return os.path.join(self.launch.log_dir, self.launch.segment_id, f"rank{rank}.log")

    async def ask(self, question: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """Call a method of the ranks' actors. Return the answers by rank; a rank that failed has an exception instead."""
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
        return {
            str(rank): found if isinstance(found, str) else f"no answer: {WHY_SILENT}"
            for rank, found in answers.items()
        }

    async def data_sets(self) -> list[dict[str, Any]]:
        """Return the state of the Ray Data data sets that rank 0 reads; an empty list if it does not answer."""
        [found] = (await self.ask("data_sets", [0])).values() or [[]]
        return found if isinstance(found, list) else []

    async def profile(self, rank: int, request: ProfileRequest) -> dict[str, Any]:
        """Let a rank profile itself, and return the profile. It is shorter if the segment ends first.

        Raises:
            Conflict: the rank cannot be profiled now, or was lost.
            SpecError: there is no such rank.
        """
        if not self.training or self.group is None:
            raise Conflict("the trial is not training yet: it is waiting for resources, or its ranks are getting ready")
        actors = self.group.actors
        if rank >= len(actors):
            ranks = "one rank, 0" if len(actors) == 1 else f"the ranks 0 to {len(actors) - 1}"
            raise SpecError(f"the trial has {ranks}", "/rank")
        if (until := self.profiling.get(rank)) is not None:
            if (left := until - time.monotonic()) <= 0:
                raise Conflict(f"rank {rank} is still summarizing an earlier profile")
            raise Conflict(f"rank {rank} is already being profiled, for {left:.0f} s more")
        profile_id = secrets.token_hex(8)
        self.profiling[rank] = time.monotonic() + request.duration_s
        try:
            return await self._profile(actors[rank], rank, profile_id, request)
        except BaseException:  # nobody will take the profile, so the rank need not finish it
            with contextlib.suppress(Exception):
                unanswered(actors[rank].stop_profile.remote(profile_id))
            raise
        finally:
            del self.profiling[rank]

    async def _profile(self, actor: Any, rank: int, profile_id: str, request: ProfileRequest) -> dict[str, Any]:
        end = time.monotonic() + request.duration_s
        if refused := await _ask(actor, rank, "start_profile", self.launch.segment_id, profile_id, request):
            raise Conflict(f"rank {rank} {refused}")
        while self.training and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, LOOK_S / 5))
        last = time.monotonic() + PROFILE_S
        while (found := await _ask(actor, rank, "take_profile", profile_id, last=last, late=SUMS_UP)) is None:
            if time.monotonic() >= last:
                raise Conflict(f"rank {rank} {SUMS_UP}")
            await asyncio.sleep(LOOK_S / 20)
        if "error" in found:
            raise Conflict(f"rank {rank} could not be profiled: {found['error']}")
        return dict(found)

    async def saves(self, ranks: Sequence[int] | None = None, *, too_long: bool = False) -> bool:
        """Return whether any of these ranks is leaving its training function and still has to commit a checkpoint.

        A rank that has just finished counts too, and so does one that lives but could not be reached for a moment.

        Args:
            ranks: the ranks to ask; None means all.
            too_long: True if the ranks have already had enough time to save. Then a rank counts only if it is waiting
                for the driver, because it cannot proceed while the driver cannot commit.
        """
        answers = (await self.ask("progress", ranks)).values()
        if too_long:
            return any(isinstance(a, Progress) and a.saving and a.waiting for a in answers)
        unknown = (type(None), *unavailable_errors())
        return any(isinstance(a, unknown) or (isinstance(a, Progress) and a.saving) for a in answers)


async def _ask(actor: Any, rank: int, question: str, *arguments: Any, last: float = 0.0, late: str = SILENT) -> Any:
    """Call a method of a rank and return its answer. If it does not answer in time, ask again until `last`, then raise.

    late: the text of the error if the rank does not answer.
    """
    while True:
        try:
            return await asyncio.wait_for(answer(getattr(actor, question).remote(*arguments)), ANSWER_S)
        except TimeoutError:
            if time.monotonic() >= last:
                raise Conflict(f"rank {rank} {late}") from None
        except lost_errors() as error:
            raise Conflict(f"rank {rank} exited while it was being profiled") from error


def unanswered(ref: Any) -> None:
    """Do not wait for the answer to a call, and do not log its error either."""
    if isinstance(ref, asyncio.Future):  # the answer of a rank without Ray
        ref.add_done_callback(lambda done: done.cancelled() or done.exception())


async def answer(ref: Any) -> Any:
    """Await a Ray `ObjectRef`. Unlike the reference itself, this coroutine can be wrapped in a task."""
    return await ref
