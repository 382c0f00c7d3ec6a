"""/healthz and /readyz: whether the service is alive, and whether it is ready.

Neither route needs a thread of the server, so both answer even if all threads are busy.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import Route, answer
from tuner.api.context import Here

router = APIRouter(route_class=Route, tags=["health"])


@router.get("/healthz", response_model=schemas.Health, summary="Check that this process answers.")
async def healthz() -> Response:
    """Answer "ok", which shows that the event loop is running."""
    return answer(schemas.Health(status="ok"))


@router.get(
    "/readyz",
    response_model=schemas.Health,
    responses={503: {"model": schemas.Health, "description": "the service is not ready; `problems` has the reasons"}},
    summary="Check that the database accepts writes and has the tables of this version, and that the driver answers.",
)
async def readyz(here: Here) -> Response:
    """Answer 200 if the service is ready, else 503 with the reasons."""
    if problems := await here.readiness.problems():
        return answer(schemas.Health(status="unready", problems=problems), 503)
    return answer(schemas.Health(status="ready"))
