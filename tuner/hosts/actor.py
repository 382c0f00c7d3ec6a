"""Make the driver host a Ray actor.

Ray loads an actor's class in each process that gets a handle to the actor, and every rank gets a handle. So this class is
separate from `Host`, whose imports (the database and more) would add a third of a second to the start of each rank.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tuner.settings import Settings

METHODS = (
    "agent", "checkpoint", "close", "cluster", "draw", "drive", "driver_log", "end", "live", "look", "metrics", "news",
    "note", "object", "poke", "profile", "report", "rest", "start", "status", "take_logs",
)  # fmt: skip
"""The methods of `Host` that other processes call."""


class HostActor:
    """The class of the Ray actor. It creates a `Host` in the actor's process, and forwards calls of METHODS to that host.

    sources: the fingerprint of the code of the process that starts the actor.
    """

    def __init__(self, settings: Settings, name: str, sources: str = "") -> None:
        from tuner.hosts.host import Host

        self._host = Host(settings, name)
        self._host.sources = sources


def _forwarding(name: str) -> Callable[..., Awaitable[Any]]:
    async def method(self: HostActor, *args: Any, **keywords: Any) -> Any:
        return await getattr(self._host, name)(*args, **keywords)

    method.__name__, method.__qualname__ = name, f"HostActor.{name}"
    return method


for _name in METHODS:
    setattr(HostActor, _name, _forwarding(_name))
