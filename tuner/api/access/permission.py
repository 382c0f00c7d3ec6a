"""Check from time to time that the client of an open stream may still read it.

A token is checked when a request arrives. But a stream may stay open for days, and the token may be revoked in the meantime.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection

ASK_S = 1.0
"""Seconds between two checks of an open stream. Checks share a cache, so that they rarely query the database."""


class Permission:
    """The permission of the client of one open stream to read it. It is checked at most every `ASK_S` seconds."""

    def __init__(self, still_allowed: Callable[[], Awaitable[bool]]) -> None:
        self._still_allowed = still_allowed
        self._asked_at = time.monotonic()  # the token is checked when the request arrives
        self._refused = False

    @classmethod
    def of(cls, request: HTTPConnection) -> Permission:
        """Return the permission of the sender of this request."""
        return cls(request.scope.get("state", {}).get("still_allowed", _always))

    def due_s(self) -> float:
        """Return the seconds until the permission has to be checked again."""
        return max(self._asked_at + ASK_S - time.monotonic(), 0.0)

    async def holds(self) -> bool:
        """Return True as long as the client may read, and False once its token is revoked or expired."""
        if not self._refused and not self.due_s():
            self._asked_at = time.monotonic()
            self._refused = not await self._still_allowed()
        return not self._refused


async def _always() -> bool:
    return True
