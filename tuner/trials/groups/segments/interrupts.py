"""Interrupt training: make all ranks of a segment wait for a verdict at their next common report."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any

from tuner.trials.groups.segments.segment_run import SegmentRun, answer
from tuner.trials.messages.lost import lost_errors, unavailable_errors

log = logging.getLogger(__name__)

_AGAIN_S = 0.2  # seconds from one attempt to reach a rank to the next


class Interrupts:
    """Interrupts segments. An interrupt tries to hold all ranks, again and again, until it has reached every rank."""

    def __init__(self) -> None:
        self._releases: set[asyncio.Task[None]] = set()

    async def interrupt(self, run: SegmentRun) -> None:
        """Find the next report that no rank has begun, and make it a milestone for all ranks.

        Each round first holds the ranks, so that they begin no more reports, and releases all of them at its end,
        because a held rank does not continue by itself. If all ranks answered, the release sets the milestone.
        Otherwise it sets none, and another round begins unless the segment has ended.
        """
        while run.training and run.group is not None:
            actors, interrupt = run.group.actors, secrets.token_hex(8)
            milestone: int | None = None
            try:
                milestone = await _hold(run, actors, interrupt)
            except unavailable_errors() as error:
                log.info("segment %s: a rank could not be reached for an interrupt: %s", run.launch.segment_id, error)
            except lost_errors() as error:
                log.info("segment %s ended while it was interrupted: %s", run.launch.segment_id, error)
                return  # the loss of a rank ends the segment
            finally:
                release = asyncio.create_task(_release(run, actors, interrupt, milestone))
                self._releases.add(release)  # the release continues if this task is cancelled
                release.add_done_callback(self._releases.discard)
            await asyncio.shield(release)
            if milestone is not None:
                return
            await asyncio.sleep(_AGAIN_S)

    async def settle(self) -> None:
        """Wait until every rank that an interrupt held has been released."""
        await asyncio.gather(*self._releases)


async def _hold(run: SegmentRun, actors: list[Any], interrupt: str) -> int | None:
    """Hold all ranks, and return the next report that no rank has begun.

    Return None if any rank no longer runs this segment.
    """
    counts = await asyncio.gather(*(answer(actor.hold.remote(run.launch.segment_id, interrupt)) for actor in actors))
    known = [count for count in counts if count is not None]
    return max(known) + 1 if run.training and len(known) == len(actors) else None


async def _release(run: SegmentRun, actors: list[Any], interrupt: str, milestone: int | None) -> None:
    """Release all held ranks. If a rank cannot be reached, try again until the rank or the segment has ended."""

    async def release(actor: Any) -> None:
        while True:
            try:
                await answer(actor.release.remote(run.launch.segment_id, interrupt, milestone))
                return
            except unavailable_errors():
                if run.over:
                    return
                await asyncio.sleep(_AGAIN_S)
            except lost_errors():
                return  # the rank's process is gone

    await asyncio.gather(*(release(actor) for actor in actors))
