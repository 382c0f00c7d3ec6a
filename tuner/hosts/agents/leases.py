"""The leases of agents: which agent has which segment, and what was answered under each lease."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.segments import Outcome, SegmentRef
from tuner.hosts.executor import SegmentInbox
from tuner.trials.messages.launch import Launch

LEASE_S = 60.0
"""The default number of seconds after which a lease ends if its agent sends nothing."""


@dataclass(slots=True, eq=False)
class Lease:
    """A segment that waits for an agent or runs on one."""

    launch: Launch
    inbox: SegmentInbox
    storage: str
    end: asyncio.Future[Outcome]
    since: float = field(default_factory=time.monotonic)  # when the segment was offered to agents
    name: str = ""  # empty until an agent gets the segment
    agent: str = ""
    request: str = ""
    lease_s: float = LEASE_S
    # Whether the lease stays valid after a verdict that ends the segment, until the agent ends the lease.
    late: bool = False
    until: float = 0.0
    lent: float = 0.0  # when an agent got the segment, which is before the segment's first report
    report_no: int = 0
    logged: int = 0
    wanted: str = "continue"
    left: bool = False  # whether a verdict has ended the segment
    answers: OrderedDict[int, dict[str, Any]] = field(default_factory=OrderedDict)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    grace: asyncio.TimerHandle | None = None
    may_save: bool = True  # whether the end of the grace waits for a last checkpoint
    over: str = ""  # why the lease has ended, in words

    @property
    def ref(self) -> SegmentRef:
        return SegmentRef(self.launch.trial_number, self.launch.segment)

    def renew(self) -> None:
        self.until = time.monotonic() + self.lease_s

    def finish(self, outcome: Outcome, why: str) -> None:
        """End the segment, unless it has ended already."""
        if not self.end.done():
            self.over = why
            self.end.set_result(outcome)


@dataclass(slots=True)
class EndedLease:
    """A lease that has ended, kept to answer repeated requests."""

    how: str  # the request that ended the lease; empty if no request did
    why: str
    answers: Mapping[int, dict[str, Any]]


@dataclass(slots=True, eq=False)
class Queue:
    """The segments and the agents of one experiment."""

    ready: deque[Lease] = field(default_factory=deque)
    leases: dict[str, Lease] = field(default_factory=dict)
    asking: deque[tuple[asyncio.Future[Lease | None], Mapping[str, Any]]] = field(default_factory=deque)
    ended: OrderedDict[str, EndedLease] = field(default_factory=OrderedDict)
    room: int = 1
    fewer_since: float | None = None
    over_since: float | None = None  # when the experiment ended; the answers are remembered for a while

    def agents(self) -> int:
        """Return the number of agents that train a trial or wait for one."""
        return len(self.leases) + len(self.free_agents())

    def free_agents(self) -> list[str]:
        """Return the name of each agent that waits for a trial, once for every trial that it asks for."""
        return [given["agent"] for found, given in self.asking if not found.done()]
