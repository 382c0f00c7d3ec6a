"""The executors that a driver host uses: its own, that of this machine, and agents. Each runs the trials of some experiments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tuner.domain.experiment import Spec
from tuner.hosts.agents.executor import AgentExecutor
from tuner.hosts.agents.groups import AgentGroups
from tuner.hosts.executor import Executor, GroupOptions, SegmentGroups
from tuner.trials.groups.segments.manager import GroupManager
from tuner.trials.messages.profiling import ProfileRequest


class Executors:
    """The executors of a driver host. Each is made when an experiment needs it for the first time.

    Args:
        own: the host's own executor.
        options: returns the options with which worker groups are made.
        lend: makes the groups that give trials to agents.
    """

    def __init__(self, own: Executor, options: Callable[[], GroupOptions], lend: Callable[[], AgentGroups]) -> None:
        self.own, self._options, self._lend = own, options, lend
        self._groups: GroupManager | None = None
        self._local: Executor | None = None  # the local executor of a host on Ray, for experiments that ask for it
        self._local_groups: GroupManager | None = None
        self._choosing = threading.Lock()
        self._agents: AgentGroups | None = None

    def of(self, spec: Spec) -> Executor:
        """Return the executor that runs the trials of an experiment: the one named in the spec, or the host's own."""
        if spec.executor == "agents":
            return AgentExecutor(self.own, self.agents, lambda: self.groups)
        if spec.executor != "local" or self.own.name == "local":
            return self.own
        with self._choosing:  # experiments are read in threads
            if self._local is None:
                from tuner.hosts.local_executor import beside

                self._local = beside()
            return self._local

    def groups_of(self, spec: Spec) -> SegmentGroups:
        """Return the worker groups of the executor that runs an experiment's trials."""
        if spec.executor == "agents":
            return self.agents
        executor = self.of(spec)
        if executor is self.own:
            return self.groups
        if self._local_groups is None:
            groups = executor.groups(self._options())
            assert isinstance(groups, GroupManager)
            self._local_groups = groups
        return self._local_groups

    @property
    def groups(self) -> GroupManager:
        """Return the worker groups of the host's own executor."""
        if self._groups is None:
            groups = self.own.groups(self._options())
            assert isinstance(groups, GroupManager)
            self._groups = groups
        return self._groups

    @property
    def groups_in_use(self) -> GroupManager | None:
        """Return the worker groups of the host's own executor, or None if no experiment has used them yet."""
        return self._groups

    @property
    def local(self) -> tuple[Executor, GroupManager] | None:
        """Return the local executor of a host on Ray, and its worker groups; None if no experiment has used it yet."""
        if self._local is None or self._local_groups is None:
            return None
        return self._local, self._local_groups

    @property
    def agents(self) -> AgentGroups:
        """Return the groups that give trials to agents."""
        if self._agents is None:
            self._agents = self._lend()
        return self._agents

    @property
    def agents_in_use(self) -> AgentGroups | None:
        """Return the groups that give trials to agents, or None if no experiment has used them yet."""
        return self._agents

    def all_groups(self) -> list[SegmentGroups]:
        """Return the worker groups of all executors that have been used."""
        return [groups for groups in (self._groups, self._local_groups, self._agents) if groups is not None]

    # -- for all executors that have been used

    def reported(self, segment_id: str) -> None:
        """Record the time at which a report of a segment arrives or is answered; see `GroupManager.reported`."""
        for groups in (self._groups, self._local_groups):
            if groups is not None:
                groups.reported(segment_id)

    def stats(self) -> dict[str, int]:
        """Return the counts of `SegmentGroups.stats`, summed over all executors."""
        found: dict[str, int] = {}
        for groups in self.all_groups():
            found = {name: count + found.get(name, 0) for name, count in groups.stats().items()}
        return found

    def training(self) -> list[str]:
        """Return the ids of the segments that are training."""
        return [name for groups in self.all_groups() for name in groups.training()]

    async def measure(self, segment_ids: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
        """Return the current resource usage of the ranks of these segments; see `GroupManager.measure`."""
        asked = list(segment_ids)
        answers = await asyncio.gather(*(groups.measure(asked) for groups in self.all_groups()))
        return {name: ranks for answer in answers for name, ranks in answer.items()}

    async def look(self, segment_id: str) -> dict[str, dict[str, Any]]:
        """Return the Python stack ("stack") and the resource usage (`process_stats.usage`) of each rank of a segment.

        Rank 0 also has the state of the data sets that it reads through Ray Data ("data_sets").
        """
        found: dict[str, dict[str, Any]] = {}
        for groups in self.all_groups():
            stacks, usage, data = await asyncio.gather(
                groups.stacks(segment_id), groups.usage(segment_id), groups.data_sets(segment_id)
            )
            found |= {rank: {"stack": stack, **usage.get(rank, {})} for rank, stack in stacks.items()}
            if "0" in found and data:
                found["0"]["data_sets"] = data
        return found

    async def profile(self, segment_id: str, rank: int, request: ProfileRequest) -> dict[str, Any] | None:
        """Profile a rank of a segment; see `SegmentGroups.profile`. Return None if the segment does not run here."""
        for groups in self.all_groups():
            if (found := await groups.profile(segment_id, rank, request)) is not None:
                return found
        return None

    async def kill(self, segment_ids: Iterable[str], reason: str) -> None:
        """End segments at once, as failed for this reason."""
        asked = list(segment_ids)
        await asyncio.gather(
            *(groups.kill(name, reason) for groups in self.all_groups() for name in asked), return_exceptions=True
        )

    def abandon(self, experiment: str, reason: str) -> None:
        """Abort an experiment's uploads that have outlived their segments, because the driver is shutting down."""
        for groups in self.all_groups():
            groups.abandon(experiment, reason)

    def forget(self, experiment: str) -> None:
        """Release the data about an experiment that has ended."""
        for groups in self.all_groups():
            groups.forget(experiment)

    async def rest(self, keep: bool) -> None:
        """Shut down idle worker groups. If `keep` is true, shut down only groups with GPUs."""
        for groups in self.all_groups():
            await groups.rest(keep)

    async def close(self) -> None:
        """End all segments, and shut down all worker groups."""
        for groups in self.all_groups():
            await groups.close()
