"""The checks that every request to the API has to pass before its route is called."""

from __future__ import annotations

from starlette.requests import Request

from tuner.api.access.auth import check_allowed
from tuner.api.answers import only_known_parameters
from tuner.api.context import context
from tuner.api.projects import within_project


async def check_request(request: Request) -> None:
    """Refuse a request that was not authenticated, is about another project, or has unknown parameters.

    The three checks are one dependency, because each dependency costs FastAPI as much time as the checks themselves.
    """
    await check_allowed(request)
    await within_project(request, await context(request))
    await only_known_parameters(request)
