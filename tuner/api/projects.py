"""The boundary between projects: what a token that is limited to one project may reach.

Two checks stand behind each other. The store that a route gets (`Context.store`) shows only the token's project. And before a
route is called, the ids in its path are looked up in that store, so that an id of another project is not found. A route is
closed to limited tokens unless its path has such an id, or `FILTERED` lists it. So a new route shows nothing by mistake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tuner.api.answers import plain_text
from tuner.api.context import Here
from tuner.experiment.usecases import id_of
from tuner.store import Store

FILTERED = frozenset(
    {
        "/bundles/{sha256}",  # whoever knows the SHA-256 has the content
        "/experiments",
        "/experiments/dry-run",
        "/session",
        "/tokens",
        "/tokens/{token_id}/revoke",
        "/audit",
        "/webhooks",
    }
)
"""The paths of routes that use only what the store shows. `tests/api/test_projects.py` tries each of them."""

LOOKUPS: Mapping[str, Callable[[Store, str], object]] = {
    "experiment": lambda store, found: id_of(store, found),
    "lease": lambda store, found: None,  # the driver finds it only under its experiment
    "experiment_id": lambda store, found: store.experiments.get(found),
    "trial_id": lambda store, found: store.trials.get(found),
    "checkpoint_id": lambda store, found: store.trials.checkpoint(found),
    "webhook_id": lambda store, found: store.webhooks.get(found),
}
"""The function that looks up the id in a path, by the name of the path's parameter. Each raises NotFound."""


async def within_project(request: Request, here: Here) -> None:
    """Refuse a call that a token of one project may not make.

    Raises:
        NotFound: an id in the path is of another project, or there is no such thing.
        HTTPException: the route is not open to tokens of one project.
    """
    if here.project is None:
        return
    path = request.scope["route"].path.removeprefix("/api/v1")
    ids = {name: str(value) for name, value in request.path_params.items()}
    if path not in FILTERED and (not ids or not ids.keys() <= LOOKUPS.keys()):
        raise HTTPException(403, f"{path} is about all projects, and this token is limited to {here.project!r}")
    for name, value in ids.items():
        if name in LOOKUPS:
            await asyncio.to_thread(LOOKUPS[name], here.store, plain_text(value))
