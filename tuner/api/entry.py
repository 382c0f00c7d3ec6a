"""The dependency of every API route: check the token, the project and the parameters, and replace a name by its id."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from tuner.api.access.auth import check_allowed
from tuner.api.answers import only_known_parameters, plain_text
from tuner.api.context import Context, context
from tuner.api.projects import within_project
from tuner.errors import Conflict, NotFound
from tuner.experiment.operations.usecases import id_of


async def check_request(request: Request) -> None:
    """Refuse a request that was not authenticated, is about another project, or has unknown parameters.

    The three checks are one dependency, because each dependency costs FastAPI as much time as the checks themselves.
    """
    await check_allowed(request)
    here = await context(request)
    await _replace_name(request, here)
    await within_project(request, here)
    await only_known_parameters(request)


async def _replace_name(request: Request, here: Context) -> None:
    """Replace the name of an experiment in the path with its id. Raise NotFound unless exactly one experiment has the name."""
    called = request.path_params.get("experiment_id")
    if called is None or called.startswith("exp_"):
        return
    try:
        request.path_params["experiment_id"] = await asyncio.to_thread(id_of, here.store, plain_text(called))
    except Conflict as error:
        raise NotFound(str(error)) from error
