"""Check while a request is open that its caller may still read.

A token is checked at the start of a request. A stream may stay open for days, so the token is checked again from time
to time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection

ASK_S = 1.0
"""Seconds between two checks of an open request. Most checks use the cache, so all requests of a token cost one query."""


class Permission:
    """Checks from time to time that the caller of one open request may still read."""

    def __init__(self, still_allowed: Callable[[], Awaitable[bool]]) -> None:
        self._still_allowed = still_allowed
        self._asked_at = time.monotonic()  # the request has just been checked
        self._refused = False

    @classmethod
    def of(cls, request: HTTPConnection) -> Permission:
        """Return the permission of the caller of this request."""
        return cls(request.scope.get("state", {}).get("still_allowed", _always))

    def due_s(self) -> float:
        """Return the seconds until the next check."""
        return max(self._asked_at + ASK_S - time.monotonic(), 0.0)

    async def holds(self) -> bool:
        """Return False once the token is revoked or expired."""
        if not self._refused and not self.due_s():
            self._asked_at = time.monotonic()
            self._refused = not await self._still_allowed()
        return not self._refused


async def _always() -> bool:
    return True
