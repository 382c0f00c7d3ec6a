"""The calls of agents explain answers that do not come from a tuner service."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tuner.agents.leases import Leases
from tuner.errors import ServiceError

MOVED = {"location": "https://tuner.example.com/here"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(200, html="<html>Please log in</html>"), "200 OK from .* which may not be a tuner service"),
        (httpx.Response(410, html="<html>gone</html>"), "410 Gone from .* which may not be a tuner service"),
        (httpx.Response(301, html="<html>moved</html>", headers=MOVED), "redirects to https://tuner.example.com/here"),
    ],
)
def test_an_answer_of_another_server_is_explained(answer: httpx.Response, said: str) -> None:
    async def ask() -> None:
        leases = Leases("http://proxy.invalid", None, "x", "agent")
        await leases.close()
        leases._http = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: answer))
        try:
            with pytest.raises(ServiceError, match=said):
                await leases.ask("r1")
        finally:
            await leases.close()

    asyncio.run(ask())
