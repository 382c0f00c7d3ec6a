"""The boundary between projects: limit a project's tokens to that project.

There are two checks. The store that a route uses (`Context.store`) shows only the token's project. And before a route
is called, the ids in its path are looked up in that store, so that an id of another project is not found. Limited
tokens may call a route only if its path has such an id or `FILTERED` lists the route, so that a new route shows nothing
by mistake.
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
        "/bundles/{sha256}",  # a caller that knows the SHA-256 has the content already
        "/experiments",
        "/experiments/dry-run",
        "/session",
        "/tokens",
        "/tokens/{token_id}/revoke",
        "/audit",
        "/webhooks",
    }
)
"""Paths of routes that use only data of the limited store. `tests/api/test_projects.py` tests each of them."""

LOOKUPS: Mapping[str, Callable[[Store, str], object]] = {
    "experiment": lambda store, found: id_of(store, found),
    "lease": lambda store, found: None,  # the driver finds a lease only under the lease's experiment
    "experiment_id": lambda store, found: store.experiments.get(found),
    "trial_id": lambda store, found: store.trials.get(found),
    "checkpoint_id": lambda store, found: store.trials.checkpoint(found),
    "webhook_id": lambda store, found: store.webhooks.get(found),
}
"""Functions that look up an id, by the name of the path parameter. Each may raise NotFound."""


async def within_project(request: Request, here: Here) -> None:
    """Refuse a call that a token limited to one project may not make.

    Raises:
        NotFound: an id in the path does not exist, or belongs to another project.
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
