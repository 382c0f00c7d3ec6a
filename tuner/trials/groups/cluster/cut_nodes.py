"""Keep track of nodes that the driver host cannot reach although Ray still counts them as alive.

Ray declares a node dead after more than a minute without heartbeats. Until then, it would place new groups on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import ray

from tuner.trials.messages.keepalive import SILENT_S, is_cut, keep_alive

log = logging.getLogger(__name__)

_LOOK_S = 2.0
_CONNECT_S = 3.0


class CutNodes:
    """The nodes on which groups must not be placed for now.

    Args:
        blocking: runs a blocking function in a thread, and returns its value.
        back: called with the id of each node that can be reached again.
    """

    def __init__(self, blocking: Callable[..., Awaitable[Any]], back: Callable[[str], object]) -> None:
        self._blocking, self._back = blocking, back
        self._until: dict[str, float] = {}  # node -> the earliest monotonic time of its return
        self._looking: asyncio.Task[None] | None = None

    def __contains__(self, node: str) -> bool:
        return node in self._until

    def add(self, node: str, least_s: float = 0.0) -> None:
        """Keep groups off a node until it can be reached, and for at least `least_s` seconds."""
        self._until[node] = max(self._until.get(node, 0.0), time.monotonic() + least_s)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), context=contextvars.Context())  # for all experiments

    def ids(self) -> frozenset[str]:
        """Return Ray's ids of these nodes."""
        return frozenset(self._until)

    def close(self) -> None:
        """Stop looking for nodes that come back."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        while self._until:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(Exception):  # Ray may be briefly unavailable
                living = {node["NodeID"]: node for node in await self._blocking(ray.nodes) if node["Alive"]}
                await asyncio.gather(*(self._check(node, living) for node in list(self._until)))

    async def _check(self, node: str, living: Mapping[str, Mapping[str, Any]]) -> None:
        found = living.get(node)
        if found is None:
            log.info("Ray now counts node %s as dead too", node[:8])
            del self._until[node]
        elif time.monotonic() >= self._until[node] and await _answers(found):
            log.info("node %s can be reached again", node[:8])
            del self._until[node]
            self._back(node)


async def unreachable(addresses: Mapping[str, tuple[str, int]]) -> str:
    """Wait until one of these nodes can no longer be reached, and return its id.

    This holds a connection to one of Ray's processes on each node, over which the kernels exchange keepalive probes.

    addresses: the host and port of each node's raylet, by node id.
    """
    watching = [asyncio.create_task(_until_cut(node, *address)) for node, address in addresses.items()]
    try:
        done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in watching:
            task.cancel()


async def _until_cut(node: str, host: str, port: int) -> str:
    while True:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), SILENT_S)
        except OSError as error:
            if isinstance(error, TimeoutError) or is_cut(error):
                return node
        else:
            try:
                keep_alive(writer.get_extra_info("socket"))
                while await reader.read(1 << 10):
                    pass
            except OSError as error:
                if is_cut(error):
                    return node
            finally:
                writer.close()
        await asyncio.sleep(_LOOK_S)  # the process has exited or refuses connections, which Ray notices by itself


def selector(nodes: Iterable[str], bundles: int) -> list[dict[str, str]] | None:
    """Return label selectors that keep Ray off these nodes, one for each bundle of a placement group; None if there are none."""
    ids = ",".join(sorted(nodes))
    return [{"ray.io/node-id": f"!in({ids})"}] * bundles if ids else None


async def _answers(node: Mapping[str, Any]) -> bool:
    """Return whether the node's raylet accepts a connection."""
    try:
        opening = asyncio.open_connection(node["NodeManagerAddress"], node["NodeManagerPort"])
        _, writer = await asyncio.wait_for(opening, _CONNECT_S)
    except OSError:  # or a TimeoutError, which is one
        return False
    writer.close()
    return True
