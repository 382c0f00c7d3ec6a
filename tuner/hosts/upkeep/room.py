"""Divide a cluster between a host's experiments: make room for others, leave nodes, adapt to nodes that join or leave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from tuner.domain.events import RoomWanted, SlotsChanged, WorkersChanged
from tuner.hosts.driven import Driven, Running
from tuner.hosts.executor import Executor
from tuner.hosts.executors import Executors
from tuner.trials.groups.segments.manager import GroupManager

log = logging.getLogger(__name__)

ROOM_S = 1.0
"""The interval, in seconds, at which the host checks whether trials should make room for other experiments."""
SLOTS_S = 5.0
"""The interval, in seconds, at which the host counts how many trials the cluster holds."""


class Room:
    """Tells the experiments of a host how many trials and workers they may have, and which trials should make room.

    Args:
        executor: the host's own executor.
        executors: all executors of the host, which know its worker groups.
        named: the experiments that the host drives, by public id. The host changes this mapping.
        segments: the segments that run, by id. The host changes this mapping.
    """

    def __init__(
        self, executor: Executor, executors: Executors, named: Mapping[str, Driven], segments: Mapping[str, Running]
    ) -> None:
        self._executor, self._executors = executor, executors
        self._named, self._segments = named, segments
        self._counted_at = float("-inf")  # when the slots of experiments were last counted

    async def keep(self) -> None:
        """Check regularly for trials whose resources another experiment should get, and pause them; see `fair_share`."""
        failed = False
        while True:
            await asyncio.sleep(ROOM_S)
            try:
                await self._check()
                failed = False
            except Exception:
                if not failed:  # log a lasting failure only once
                    log.exception("the cluster could not be divided between experiments; this is tried again")
                failed = True

    async def _check(self) -> None:
        """Check once, and put the requests into the loops of the experiments."""
        groups = self._executors.groups_in_use
        if groups is None:
            return
        await self.leave_nodes(groups)
        await self.count_slots()
        self.grant_workers(groups)
        if len(self._named) < 2:
            return
        for name, experiment, priority in groups.make_room(self.may_yield):
            segment = self._segments[name]
            reason = f"to make room for experiment {experiment} (priority {priority})"
            trial, ordinal = segment.ref
            segment.inbound.loop.put(RoomWanted(time=time.time(), trial=trial, segment=ordinal, reason=reason))

    async def leave_nodes(self, groups: GroupManager) -> None:
        """Pause the trials on nodes that are about to be taken away, so that they continue elsewhere from a checkpoint.

        A trial that has no checkpoint yet keeps training, and is lost with its node if it saves none in time.
        """
        try:
            found = await groups.leaving()
        except Exception as error:  # Ray may not answer for a moment
            log.debug("Ray did not say which nodes are leaving: %s", error)
            return
        for name, reason in found.items():
            if self.may_yield(name):
                segment = self._segments[name]
                trial, ordinal = segment.ref
                segment.inbound.loop.put(RoomWanted(time=time.time(), trial=trial, segment=ordinal, reason=reason))

    async def count_slots(self) -> None:
        """Tell experiments without `max_concurrent_trials` if nodes have joined or left, so that more or fewer trials fit.

        A change counts once two checks, a few seconds apart, have found it.
        """
        if time.monotonic() - self._counted_at < SLOTS_S:
            return
        self._counted_at = time.monotonic()
        for name, driven in list(self._named.items()):
            spec = driven.core.spec
            if spec.limits.max_concurrent_trials is not None or spec.executor in ("agents", "local"):
                continue
            try:
                slots = await asyncio.to_thread(self._executor.capacity, spec.scaling)
            except Exception as error:  # Ray may not answer for a moment
                log.debug("Ray did not say which nodes there are: %s", error)
                return
            if self._named.get(name) is not driven:  # it has ended in the meantime
                continue
            before, driven.slots = driven.slots, slots
            if slots is not None and slots == before != driven.core.experiment.room:
                driven.loop.put(SlotsChanged(time=time.time(), slots=slots))

    def grant_workers(self, groups: GroupManager) -> None:
        """Tell experiments with elastic trials how many workers they may have, once two checks have found a change."""
        for name, driven in self._named.items():
            spec, sizes = driven.record.spec, driven.core.experiment.sizes
            if not spec.scaling.elastic or spec.executor in ("agents", "local"):
                continue
            before, driven.granted = driven.granted, groups.granted(name, spec.scaling.bundle())
            present = sizes.held if sizes.granted is None else sizes.granted
            if driven.granted is not None and driven.granted == before != present:
                driven.loop.put(WorkersChanged(time=time.time(), workers=driven.granted))

    def may_yield(self, name: str) -> bool:
        """Return whether the segment with this id can be paused, so that its trial continues later from a checkpoint."""
        found = self._segments.get(name)
        return found is not None and found.inbound.core.may_yield(found.ref)
