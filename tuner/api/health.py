"""Liveness and readiness. These routes are outside /api/v1."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from tuner.api import schemas
from tuner.api.answers import answer
from tuner.api.context import Here
from tuner.errors import StoreError

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=schemas.Health, summary="Say that this process answers.")
def healthz() -> Response:
    return answer(schemas.Health(status="ok"))


@router.get(
    "/readyz",
    response_model=schemas.Health,
    responses={503: {"model": schemas.Health, "description": "it is not ready; problems says why"}},
    summary="Say whether the database is up to date and the driver answers.",
)
def readyz(here: Here) -> Response:
    problems = []
    try:
        here.store.check()
    except StoreError as error:
        problems.append(str(error))
    if (trouble := here.problem()) is not None:
        problems.append(trouble)
    if problems:
        return answer(schemas.Health(status="unready", problems=problems), 503)
    return answer(schemas.Health(status="ready"))
