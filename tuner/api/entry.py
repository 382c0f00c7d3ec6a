"""The dependency of every API route: check the token, the project and the parameters, and replace a name by its id."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from tuner.api.access.auth import check_allowed
from tuner.api.answers import only_known_parameters, plain_text
from tuner.api.context import Context, context
from tuner.api.paths import with_slashes
from tuner.api.projects import within_project
from tuner.domain.keys import may_be_experiment_id
from tuner.errors import Conflict, NotFound
from tuner.experiment.operations.usecases import id_of
from tuner.names import in_project
from tuner.store import Store


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
    """Replace the name of an experiment in the path with its id.

    The routes for agents look up names themselves, so only the slashes in these names are decoded.

    Raises:
        NotFound: no experiment has the name, or several have it.
    """
    called = request.path_params.get("experiment_id")
    if called is not None and not may_be_experiment_id(called):
        request.path_params["experiment_id"] = await asyncio.to_thread(_id, here, plain_text(called))
    called = request.path_params.get("experiment")
    if called is not None and with_slashes(called) != called:
        request.path_params["experiment"] = await asyncio.to_thread(_meant, here.store, plain_text(called))


def _id(here: Context, called: str) -> str:
    try:
        return id_of(here.store, _meant(here.store, called))
    except Conflict as error:
        raise NotFound(str(error)) from error
    except NotFound:
        if called.startswith("exp_"):  # probably a wrong id, for which no similar name is of use
            raise NotFound(f"no experiment {called}{in_project(here.project)}") from None
        raise


def _meant(store: Store, called: str) -> str:
    """Return the name with its slashes decoded, or unchanged if an experiment has exactly that name."""
    decoded = with_slashes(called)
    return called if decoded == called or store.experiments.named(called) else decoded
