"""Idle worker groups that are kept for the next segment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tuner.domain.experiment import Scaling
from tuner.trials.groups.pools.admission import WaitingSegment
from tuner.trials.groups.pools.group import Group, Key, scaling_key

_ASK_AGAIN_S = 0.25  # seconds that a group is kept for the experiment that has just used it


class WarmGroups:
    """Groups without a segment: *idle* groups for any segment, and groups *kept* briefly for their last experiment.

    Args:
        idle_timeout_s: how long a group may be idle.
        expired: called with each group that has been idle for that long, after it was removed from the idle groups.
    """

    def __init__(self, idle_timeout_s: float, expired: Callable[[Group], object]) -> None:
        self._idle_timeout_s, self._expired = idle_timeout_s, expired
        self.idle: list[Group] = []  # the longest idle first
        self._kept: dict[Group, asyncio.TimerHandle] = {}

    @property
    def kept(self) -> list[Group]:
        """Return the groups that are kept for the experiment that has just used them."""
        return list(self._kept)

    def add(self, group: Group) -> None:
        """Add a group to the idle groups."""
        self.idle.append(group)
        group.expiry = asyncio.get_running_loop().call_later(self._idle_timeout_s, self._expire, group)

    def take(self, group: Group) -> Group:
        """Remove a group from the idle groups, and return it."""
        self.idle.remove(group)
        if group.expiry is not None:  # without this, many short trials would leave many timers behind
            group.expiry.cancel()
        return group

    def usable(self, segment: WaitingSegment, at: Sequence[str]) -> Group | None:
        """Return the newest idle group that the segment can use, or None. Prefer a group on the nodes `at`."""
        if not segment.reuses:
            return None
        usable = [group for group in reversed(self.idle) if group.key == segment.key]
        return next((group for group in usable if group.nodes() == tuple(at)), usable[0] if usable else None)

    def useless(self, scaling: Scaling, count: int | None) -> list[Group]:
        """Return all idle groups except the newest `count` with this scaling. A `count` of None leaves out all of these."""
        kind = scaling_key(scaling)
        matching = [group for group in self.idle if group.key[: len(kind)] == kind]
        useful = matching if count is None else matching[-count:]
        return [group for group in self.idle if group not in useful]

    def keep(self, group: Group, unclaimed: Callable[[Group], object]) -> None:
        """Keep a group briefly for the experiment that has just used it.

        unclaimed: called with the group if the experiment does not take it in time.
        """
        self._kept[group] = asyncio.get_running_loop().call_later(_ASK_AGAIN_S, unclaimed, group)

    def take_kept(self, experiment: str, key: Key) -> Group | None:
        """Return a group of this kind that was kept for the experiment, and stop keeping it; None if there is none."""
        for group in self._kept:
            if group.key == key and group.experiment == experiment:
                self.drop_kept(group)
                return group
        return None

    def drop_kept(self, group: Group) -> bool:
        """Stop keeping a group for its last experiment. Return whether the group was kept."""
        timer = self._kept.pop(group, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _expire(self, group: Group) -> None:
        if group in self.idle:
            self._expired(self.take(group))
