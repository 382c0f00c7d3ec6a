"""Handle frequent requests without FastAPI, because it takes longer to route such a request than a handler takes to answer it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi.responses import Response
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from tuner.api.paths import path_of


class Direct(BaseRoute):
    """A route that takes the common requests of one of FastAPI's routes. Requests that it does not take go to that route.

    FastAPI's route also describes the API. Put this route before it.
    """

    def __init__(
        self, method: str, path: str, respond: Callable[[Request], Awaitable[Response]], takes: Callable[[Scope], bool]
    ) -> None:
        """Make a route.

        Args:
            method: the method of the requests.
            path: their path, without parameters.
            respond: returns the response. It makes the same checks as the dependencies of FastAPI's route.
            takes: returns whether `respond` can handle a request. Requests with a query are not passed to it.
        """
        self.method, self.path, self.path_format = method, path, path
        self._respond, self._takes = respond, takes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether this route takes the request, and what to add to its scope."""
        is_mine = (
            scope["type"] == "http"
            and scope["method"] == self.method
            and path_of(scope) == self.path
            and not scope["query_string"]
            and self._takes(scope)
        )
        return (Match.FULL, {"route": self}) if is_mine else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request that matches. The app handles errors."""
        response = await self._respond(Request(scope, receive, send))
        await response(scope, receive, send)
