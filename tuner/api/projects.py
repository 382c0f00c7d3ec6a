"""Make sure that a token that is limited to a project gives access to this project only.

There are two checks. The store that a route uses (`Context.store`) shows only the token's project. And before a route is
called, the ids in the request's path are looked up in that store, so that an id of another project is not found. A limited
token may call a route only if the path contains such an id or is listed in `FILTERED`, so that a route that is added later
does not show other projects by mistake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tuner.api.answers import plain_text
from tuner.api.context import Here
from tuner.experiment.operations.usecases import found_for_agents
from tuner.store import Store

FILTERED = frozenset(
    {
        "/bundles/{sha256}",  # whoever knows the SHA-256 already has the content
        "/experiments",
        "/experiments/dry-run",
        "/projects",
        "/session",
        "/tokens",
        "/tokens/{token_id}/revoke",
        "/audit",
        "/webhooks",
    }
)
"""Paths of routes that take all their data from `Context.store`, so that limited tokens may call them.

`tests/api/test_projects.py` tests each of these routes.
"""

LOOKUPS: Mapping[str, Callable[[Store, str], object]] = {
    "experiment": lambda store, found: found_for_agents(store, found),
    # A lease is not looked up, because the driver finds it only together with its experiment.
    "lease": lambda store, found: None,
    "experiment_id": lambda store, found: store.experiments.get(found),
    "trial_id": lambda store, found: store.trials.get(found),
    "checkpoint_id": lambda store, found: store.trials.checkpoint(found),
    "project": lambda store, found: store.projects.check(found),
    "webhook_id": lambda store, found: store.webhooks.get(found),
}
"""Maps the name of a path parameter to a function that looks up its value in a store, or raises NotFound."""


async def within_project(request: Request, here: Here) -> None:
    """Refuse a request if its token is limited to a project and the request concerns other projects.

    Raises:
        NotFound: an id in the path does not exist, or belongs to another project.
        HTTPException: tokens that are limited to a project may not call the route.
    """
    if here.project is None:
        return
    path = request.scope["route"].path.removeprefix("/api/v1")
    ids = {name: str(value) for name, value in request.path_params.items()}
    if path not in FILTERED and (not ids or not ids.keys() <= LOOKUPS.keys()):
        raise HTTPException(
            403, f"{path} is about all projects, but your access is limited to the project {here.project!r}"
        )
    for name, value in ids.items():
        if name in LOOKUPS:
            await asyncio.to_thread(LOOKUPS[name], here.store, plain_text(value))
