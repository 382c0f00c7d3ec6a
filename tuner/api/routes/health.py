"""Liveness and readiness, outside /api/v1. Neither takes a thread of the server, so both answer when all threads are busy."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import answer
from tuner.api.context import Here

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=schemas.Health, summary="Say that this process answers.")
async def healthz() -> Response:
    """Answer as long as the process can."""
    return answer(schemas.Health(status="ok"))


@router.get(
    "/readyz",
    response_model=schemas.Health,
    responses={503: {"model": schemas.Health, "description": "it is not ready; problems says why"}},
    summary="Say whether the database takes writes, is up to date, and the driver answers.",
)
async def readyz(here: Here) -> Response:
    """Answer 200 if the service can do its work, and 503 with the reasons if it cannot."""
    if problems := await here.readiness.problems():
        return answer(schemas.Health(status="unready", problems=problems), 503)
    return answer(schemas.Health(status="ready"))
