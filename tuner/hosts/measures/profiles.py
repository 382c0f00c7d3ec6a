"""Profile ranks at the request of users, who may stop waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tuner.errors import Conflict
from tuner.hosts.executors import Executors
from tuner.hosts.refusals import REFUSALS, refusal
from tuner.trials.messages.profiling import ProfileRequest


class Profiles:
    """The profiles that are being made on a host."""

    def __init__(self, executors: Executors) -> None:
        self._executors = executors
        self._making: dict[str, asyncio.Task[dict[str, Any]]] = {}  # the profiles in progress, by id

    async def profile(self, segment_id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make a profile, or abort one; see `Host.profile`."""
        if "stop" in arguments:
            if (unwanted := self._making.get(arguments["stop"])) is not None:
                unwanted.cancel()
            return {"found": None}
        request = ProfileRequest(**{name: value for name, value in arguments.items() if name not in ("id", "rank")})
        making = asyncio.create_task(self._profile(segment_id, arguments["rank"], request))
        self._making[arguments["id"]] = making
        try:
            await asyncio.wait({making})
        finally:
            del self._making[arguments["id"]]
            making.cancel()
        return refusal(Conflict("the profile was stopped")) if making.cancelled() else making.result()

    async def _profile(self, segment_id: str, rank: int, request: ProfileRequest) -> dict[str, Any]:
        try:
            return {"found": await self._executors.profile(segment_id, rank, request)}
        except REFUSALS as error:
            return refusal(error)
