"""The checks that every request to the API has to pass before its route is called."""

from __future__ import annotations

from starlette.requests import Request

from tuner.api.access.auth import check_allowed
from tuner.api.answers import only_known_parameters
from tuner.api.context import context
from tuner.api.projects import within_project


async def check_request(request: Request) -> None:
    """Refuse a request that was not authenticated, is about another project, or has unknown parameters.

    This is one dependency of each route and not three, because FastAPI takes as long for each as the checks do.
    """
    await check_allowed(request)
    await within_project(request, await context(request))
    await only_known_parameters(request)
