"""Follow the uploads that continue in worker groups after their segments have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from tuner.domain.segments import CheckpointInfo
from tuner.trials.groups.pools.group import Group
from tuner.trials.groups.segments.segment_run import answer, unanswered
from tuner.trials.messages.launch import Launch
from tuner.trials.messages.lost import lost_errors, unavailable_errors

log = logging.getLogger(__name__)

_AGAIN_S = 1.0  # seconds to wait before a process that could not be reached is asked again

End = CheckpointInfo | str
"""The outcome of an upload: the checkpoint, which is ready, or the reason why there is none."""


class Uploads:
    """Asks rank 0 of each group how its uploads end. It belongs to the host's event loop."""

    def __init__(self) -> None:
        self._ends: dict[str, dict[str, asyncio.Future[End]]] = {}  # segment -> checkpoint -> how its upload ended
        self._about: dict[str, tuple[Launch, Group]] = {}  # segment -> its launch, and the group that uploads
        self._asking: set[asyncio.Task[None]] = set()

    def begin(self, launch: Launch, group: Group, uploading: Iterable[CheckpointInfo], limit_s: float) -> None:
        """Begin to wait for the uploads of a segment that has ended. Give up on an upload after `limit_s` seconds."""
        for info in uploading:
            end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
            self._ends.setdefault(launch.segment_id, {})[info.id] = end
            self._about[launch.segment_id] = launch, group
            group.uploads.add(end)
            end.add_done_callback(group.uploads.discard)
            task = asyncio.create_task(self._ask(launch, group, info, end, limit_s))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def end(self, segment_id: str, checkpoint: str) -> End:
        """Wait until an upload has ended, and return how. Call this once for each upload."""
        ends = self._ends.get(segment_id, {})
        if checkpoint not in ends:
            return "its upload is no longer known"
        found = await asyncio.shield(ends[checkpoint])
        self._forget(segment_id, checkpoint)  # a cancellation skips this, so that `abandon` still finds the upload
        return found

    def give_up(self, segment_id: str, why: str) -> None:
        """Abort a segment's uploads, so that their checkpoints are lost. Do nothing if the segment has none."""
        if segment_id not in self._about:
            return
        _, group = self._about[segment_id]
        waiting = [end for end in self._ends[segment_id].values() if not end.done()]
        for end in waiting:
            end.set_result(why)
        if waiting:
            for actor in group.actors:
                unanswered(actor.abandon.remote(segment_id, why))

    def lose(self, group: Group, why: str) -> None:
        """Abort the uploads of all segments of a group whose processes are about to be killed."""
        for segment_id in [name for name, (_, other) in self._about.items() if other is group]:
            self.give_up(segment_id, why)

    def abandon(self, experiment: str | None, why: str) -> None:
        """Abort and forget the uploads of an experiment, or of all experiments if it is None."""
        for segment_id, (launch, _) in list(self._about.items()):
            if experiment is None or launch.experiment_id == experiment:
                self.give_up(segment_id, why)
                for checkpoint in list(self._ends[segment_id]):
                    self._forget(segment_id, checkpoint)

    def _forget(self, segment_id: str, checkpoint: str) -> None:
        ends = self._ends.get(segment_id, {})
        ends.pop(checkpoint, None)
        if not ends:
            self._ends.pop(segment_id, None)
            self._about.pop(segment_id, None)

    async def _ask(
        self, launch: Launch, group: Group, info: CheckpointInfo, end: asyncio.Future[End], limit_s: float
    ) -> None:
        asked = asyncio.ensure_future(self._answer(launch.segment_id, group, info))
        try:
            await asyncio.wait({asked, end}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() and not end.done():
                self.give_up(launch.segment_id, f"it was not uploaded within {limit_s:g} s of its segment's end")
            elif not end.done():
                end.set_result(asked.result())
        finally:
            asked.cancel()
            if not end.done():
                end.set_result("the driver is shutting down")

    async def _answer(self, segment_id: str, group: Group, info: CheckpointInfo) -> End:
        while True:
            try:
                found: End = await answer(group.actors[0].upload_end.remote(segment_id, info.id))
                return found
            except unavailable_errors():
                await asyncio.sleep(_AGAIN_S)
            except lost_errors() as error:
                return f"its worker process exited before the upload was complete: {type(error).__name__}"
            except Exception as error:
                log.exception("the upload of %s cannot be followed", info.id)
                return f"{type(error).__name__}: {error}"
